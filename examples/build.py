"""Make the notebooks of the tutorials: python examples/build.py [SCRIPT ...]."""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def build(script):
    """Run the cells of a script and write its notebook next to it."""
    notebook = jupytext.read(script)
    notebook.metadata = {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        },
        "language_info": {"name": "python"},
    }
    client = NotebookClient(notebook, record_timing=False, coalesce_streams=True)
    client.execute(cwd=FOLDER)
    # Everything that would differ from run to run is left out.
    notebook.metadata.language_info = {"name": "python"}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            # Messages of the backend about this machine.
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
    nbformat.write(notebook, script.with_suffix(".ipynb"))


if __name__ == "__main__":
    scripts = [Path(name) for name in sys.argv[1:]]
    for script in scripts or sorted(FOLDER.glob("[0-9]*.py")):
        print(script.name, flush=True)
        build(script)
