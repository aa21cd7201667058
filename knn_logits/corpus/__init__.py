"""What a user names on the command line, read as documents: files, folders, rows of the Hub."""
