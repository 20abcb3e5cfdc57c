"""What serving will take, before anything is loaded: the budget solved, and its reports."""
