"""Archives and warehouses that tests share or write."""
