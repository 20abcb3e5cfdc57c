"""Plug-ins by file name: one module (or package) in a folder is one plug-in of that name.

Nothing is registered by hand; a file that is there is a plug-in. Modules named `base` and those
starting with an underscore are the folder's own. A plug-in that was asked for and cannot be loaded
is an error with its cause, never a warning.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from holdover.errors import PluginError


def plugin_names(package: str) -> tuple[str, ...]:
    """Names of the plug-ins in a package, without importing them."""
    paths = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(paths))
    return tuple(sorted(n for n in found if n != "base" and not n.startswith("_")))


def check_plugin(package: str, name: str, flag: str | None = None) -> None:
    """Refuse a name that no plug-in of the package has; `flag` is where a person gave it."""
    names = plugin_names(package)
    if name not in names:
        known = ", ".join(names)
        if flag is None:
            raise PluginError(f"{package} has no {name!r}; it has: {known}")
        raise PluginError(f"{flag}: there is no {name!r}; use one of: {known}")


def load_plugin(package: str, name: str, flag: str | None = None) -> ModuleType:
    """Import `package.name`; a wrong name lists the right ones, a failing one keeps its cause.

    `flag` is where a person gave the name.
    """
    check_plugin(package, name, flag)
    return _load(package, name)


def load_all(package: str) -> dict[str, ModuleType]:
    """Every plug-in of a package, by name."""
    return {name: _load(package, name) for name in plugin_names(package)}


def _load(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{package}.{name}")
    except Exception as error:
        raise PluginError(f"{package}.{name} failed to load: {error}") from error
