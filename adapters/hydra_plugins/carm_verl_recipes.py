"""Hydra finds plug-ins in this namespace package: with it, ``+carm=...`` is a known group in every launch of verl.

Without it Hydra would read ``+carm=math_4b`` as a new key of that value, and train without a mask, in silence.
"""

from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class CarmVerlRecipes(SearchPathPlugin):
    """Adds the folder of carm_verl's recipes, found without importing it (other Hydra programs must not pay for verl)."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder to Hydra's search path."""
        package = find_spec("carm_verl")
        if package is not None and package.origin is not None:
            search_path.append(provider="carm_verl", path=f"file://{Path(package.origin).parent / 'recipes'}")
