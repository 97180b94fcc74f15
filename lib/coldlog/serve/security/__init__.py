"""Who may connect: users with hashed passwords, and the SASL mechanisms PLAIN and SCRAM."""
