"""Digits learnt by a federation whose nodes need not be trusted: task.py, client_app.py, server_app.py."""
