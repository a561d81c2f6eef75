"""The site's settings.  `make site` copies this folder and the notebooks to `build/site` and builds there."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]

from helpers.course.syllabus.addresses import urls  # noqa: E402
from helpers.course.syllabus.outline import course  # noqa: E402
from helpers.course.syllabus.routes import ROUTES  # noqa: E402

LESSONS = course()
REPOSITORY = urls().get("Repository")

LIGHT = {  # of furo's variables: the course's own blue, and what a figure stands on
    "font-stack": "Inter, system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
    "color-brand-primary": "#0072b2",
    "color-brand-content": "#0068a3",
    "color-brand-visited": "#5b4a99",
    "color-api-name": "#0072b2",
}
DARK = {
    "color-brand-primary": "#6cb8ea",
    "color-brand-content": "#7cc0ee",
    "color-brand-visited": "#b4a4ee",
    "color-api-name": "#7cc0ee",
}

project = "Distributed Training, Measured"
author = "its contributors"
html_title = project
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["lessons", "around", "terms", "mathml", "api"]  # of the folder beside
myst_enable_extensions = ["dollarmath", "deflist", "substitution"]
myst_substitutions = {"core": f"{sum(each.minutes.core for each in LESSONS) / 60:.0f}"}
myst_substitutions |= {"fast": f"{ROUTES[0].minutes(LESSONS) / 60:.0f}", "lessons": str(len(LESSONS))}
myst_dmath_double_inline = True  # a displayed formula may stand within a paragraph, as in Jupyter
myst_heading_anchors = 3
myst_heading_slug_func = "lessons.slug"  # links that JupyterLab follows work here too
nb_execution_mode = "off"  # the stored outputs are those of a real run, which tests repeat
nb_merge_streams = True
nb_render_markdown_format = "myst"  # which knows tables
html_math_renderer = "mathml"
highlight_language = "none"  # of a block that names none: what a command says
pygments_dark_style = "a11y-dark"
html_theme = "furo"
html_theme_options = {"light_css_variables": LIGHT, "dark_css_variables": LIGHT | DARK}
if REPOSITORY:
    html_theme_options |= {
        "source_repository": REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_logo = html_favicon = "logo.svg"
html_use_index = html_domain_indices = False
html_show_copyright = html_show_sphinx = html_copy_source = False
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
napoleon_use_ivar = True
napoleon_use_param = False  # names that share a sentence stay together
