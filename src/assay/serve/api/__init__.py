"""The API: schemas of requests and responses, the route table, and one module of handlers per dialect."""
