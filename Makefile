# Two commands: `make lab` opens the course, `make test` tests it.  Both set everything up first.
PYTHON ?= python3
LESSON ?=
PLAN ?=
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # as containers set it: every rank would compile the helpers anew
.NOTPARALLEL:  # tests of the launcher run after all others
.PHONY: help lab test test-rest test-all test-quick test-cluster test-gpu test-again rehearse-all record job check refresh site html lint bench reset clean setup

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

lab: setup  ## set up, check this machine, and open the course in JupyterLab
	@$(BIN)/python -m helpers.course.lesson.readiness --once
	@$(BIN)/python -m helpers.course.lesson.copies open

test: setup lint  ## set up, then the tests to run before every push: formulas, every lesson, the launcher in short
	@$(BIN)/python -m pytest -m "unit or lessons" -n 2 $(SIDE_BY_SIDE) tests notebooks $$($(BIN)/python tests/nbval_options.py)
	@$(BIN)/python -m pytest -m smoke -n 3 $(SIDE_BY_SIDE) tests/launcher

test-rest: setup  ## what `make test` leaves out: tests in real ranks, companions of the lessons, all of the launcher's, rehearsals
	@$(BIN)/python -m pytest -m "ranks or beside" -n 2 $(SIDE_BY_SIDE) -rs tests notebooks $$($(BIN)/python tests/nbval_options.py)
	@$(BIN)/python -m pytest -m "launcher and not smoke" -n 3 $(SIDE_BY_SIDE) -rs tests/launcher

test-all: test test-rest  ## everything that CI runs

test-quick: setup lint  ## what needs no ranks, and one lesson (LESSON=04): less than a minute
	@$(BIN)/python -m pytest -m "unit or lessons or beside" -n 2 $(SIDE_BY_SIDE) tests $(wildcard notebooks/$(or $(LESSON),00)_*.ipynb notebooks/appendix_$(LESSON).ipynb) $$($(BIN)/python tests/nbval_options.py)

test-cluster: setup  ## a real Slurm and the deepspeed command through ssh, on machines made of this one; root installs what they need (apt)
	@sh tests/cluster_packages.sh
	@$(BIN)/python -m pytest -m launcher -n 2 $(SIDE_BY_SIDE) -rs tests/launcher/test_slurm.py tests/launcher/test_hosts.py

test-gpu: setup  ## on a machine with GPUs: execute every lesson there, six at a time; what does not depend on the device is checked
	@$(BIN)/python -m pytest -n 6 $(SIDE_BY_SIDE) -rs tests/test_on_gpus.py tests/recording notebooks --nbval-lax --nbval-current-env --nbval-cell-timeout=300

rehearse-all: setup  ## every rehearsal beside what ran: the whole grid on real CPU ranks, and all recorded runs of ZeRO
	@REHEARSE_ALL=1 $(BIN)/python -m pytest -rP tests/rehearsal

record: setup  ## record runs of 1.5 and 7.5 billion parameters on this machine's GPUs, into work/recorded/
	@$(BIN)/python -m helpers.course.recording.record

job: setup  ## rehearse the course's job under every plan, into recorded/job/ (PLAN="stage 1" for one)
	@$(BIN)/python -m helpers.course.job.rehearsals $(if $(PLAN),"$(PLAN)")

check: setup  ## is this machine ready?
	@$(BIN)/python -m helpers.course.lesson.readiness

refresh: setup  ## execute the lessons and store their outputs (LESSON=02 for one, LESSON=more/02 for its companion, LESSON=fsdp, LESSON=claims, LESSON=demo, LESSON=index)
	@$(BIN)/python tests/refresh.py $(LESSON)

site: setup  ## build the site from the stored outputs, into build/site/html
	@$(BIN)/python docs/build.py

html: setup  ## a lesson as one page that needs no other file, into build/site (LESSON=07)
	@$(BIN)/python docs/build.py --page $(or $(LESSON),index)

lint: setup  ## style of code and notebooks, and which half imports which
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@said=$$($(BIN)/lint-imports --no-cache) || { echo "$$said"; exit 1; }

bench: setup  ## this machine's constants; times of a launch beside other launchers; time and memory of every lesson
	@$(BIN)/python tests/benchmarks/machine.py
	@$(BIN)/python tests/benchmarks/launchers.py
	@$(BIN)/python tests/benchmarks/lessons.py

test-again: setup  ## hunt what fails by chance: the whole suite RUNS times (20), every second time beside a busy loop on each processor
	@$(BIN)/python tests/benchmarks/again.py $(or $(RUNS),20)

reset: setup  ## a fresh copy of a lesson in work/, beside yours (LESSON=02, or LESSON=more/02 for its companion)
	@$(BIN)/python -m helpers.course.lesson.copies reset $(LESSON)

clean:  ## remove .venv and caches; work/ is kept
	@rm -rf .venv .pytest_cache .ruff_cache *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	@$(PYTHON) install.py
