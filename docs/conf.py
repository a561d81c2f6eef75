"""The site's settings.  `make site` copies this folder and the notebooks to `build/site` and builds there."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]
REPOSITORY = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

project = "Distributed Training, Measured"
author = "its contributors"
html_title = project
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["lessons", "terms", "mathml", "api"]  # of the folder beside
myst_enable_extensions = ["dollarmath", "deflist"]
myst_dmath_double_inline = True  # a displayed formula may stand within a paragraph, as in Jupyter
myst_heading_anchors = 3
myst_heading_slug_func = "lessons.slug"  # links that JupyterLab follows work here too
nb_execution_mode = "off"  # the stored outputs are those of a real run, which tests repeat
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
html_math_renderer = "mathml"
html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_use_index = html_domain_indices = False
html_show_copyright = html_show_sphinx = html_copy_source = False
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
