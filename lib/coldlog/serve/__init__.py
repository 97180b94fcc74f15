"""Answer Kafka clients from the archive, with no broker behind it. Read `program.py` first, then `server.py`.

Bytes of Kafka's protocol come in, and go out. `messages` turns them into requests and back (kio has the layouts),
`answers/` has a module for each kind of request, `archive_view` asks the tables and the archive. Nothing is written.
"""
