"""Shows declared settings in the reference as what they are: defaults, and a line for each."""

from importlib import import_module
from inspect import cleandoc

import griffe

from knn_logits.settings.declaration import settings_of


class Settings(griffe.Extension):
    """Reads classes whose fields are made by `setting()`."""

    def on_class_members(self, *, cls, **_):
        """Called for each class, when its fields are read."""
        if not any(str(field.value).startswith("setting(") for field in cls.attributes.values()):
            return
        kind = getattr(import_module(cls.module.path), cls.name)
        for name, declared in settings_of(kind).items():
            cls.attributes[name].value = repr(declared.default)
        cls.docstring.value = cleandoc(kind.__doc__)
