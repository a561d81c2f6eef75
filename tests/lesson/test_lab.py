"""How JupyterLab is started: at the start page, with a link that a learner can follow from where they sit."""

import socket

from helpers.course.lesson import lab


def test_the_printed_link_leads_to_the_page_itself():
    assert "--LabApp.default_url=/lab/tree/index.ipynb" in lab.options("index.ipynb", port=8888, browser=True)


def test_with_a_browser_it_opens_and_nothing_is_said_of_ssh():
    assert lab.has_browser({"DISPLAY": ":0"}, platform="linux") and lab.has_browser({}, platform="darwin")
    assert "--no-browser" not in lab.options("index.ipynb", port=8888, browser=True)


def test_without_a_browser_the_tunnels_command_is_printed():
    assert not lab.has_browser({}, platform="linux") and not lab.has_browser(
        {"DISPLAY": ":10", "SSH_CONNECTION": "a 1 b 22"}, platform="linux"
    )
    assert "--no-browser" in lab.options("index.ipynb", port=8889, browser=False)
    said = lab.tunnel(8889, {"SSH_CONNECTION": "10.0.0.7 50000 10.0.0.9 22", "USER": "ada"})
    assert "ssh -N -L 8889:localhost:8889 ada@10.0.0.9" in said


def test_another_notebook_server_does_not_take_the_port():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert lab.free_port(taken) != taken


def test_root_is_allowed_and_others_get_no_such_option():
    assert "--allow-root" in lab.options("index.ipynb", port=8888, browser=True, root=True)
    assert "--allow-root" not in lab.options("index.ipynb", port=8888, browser=True, root=False)
