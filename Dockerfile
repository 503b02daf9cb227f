# Two stages: `base` has what builds and tests the package (.devcontainer), `run` has the package itself.
#   docker build -t paras2s . && docker run --rm -it -v "$PWD/runs:/paras2s/runs" paras2s paras2s demo --preset quick
FROM python:3.11-slim AS base
# A compiler for pyworld and the native sampler; wget for KubeRay's probes.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git make wget \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home user
WORKDIR /home/user
USER user

FROM base AS run
USER root
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY paras2s /src/paras2s
# Ray's extra: a RayJob is submitted to its dashboard.
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[offline,models,curate]" "ray[default]" && rm -r /src
RUN install -d -o user /paras2s
WORKDIR /paras2s
USER user
CMD ["paras2s", "--help"]
