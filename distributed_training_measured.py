"""The package of the tools in a checkout of the course, where they lie in `helpers/tools`: the modules of
`helpers.tools`, under the name that they have where they are installed alone."""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

NAME, SAME = "distributed_training_measured", "helpers.tools"


class SameModules(MetaPathFinder, Loader):
    """Imports `helpers.tools.X` for `distributed_training_measured.X`: no module is made twice."""

    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name.startswith(f"{NAME}.") else None

    def exec_module(self, module):
        name = module.__name__
        sys.modules[name] = import_module(SAME + name.removeprefix(NAME))


sys.meta_path.insert(0, SameModules())
sys.modules[NAME] = import_module(SAME)
