"""Digits learnt by a federation in which some nodes are hostile: task.py, client_app.py, server_app.py."""
