"""The field's studies, made again on a model and a text of one's own."""
