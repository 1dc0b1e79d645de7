# One image for scheduler, workers and jobs: every process has the same versions.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN python -m venv tools && python -m venv /opt/gramian
COPY requirements/build.txt requirements/run.txt requirements/
RUN tools/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt
RUN tools/bin/uv pip install --no-cache --compile-bytecode --python /opt/gramian/bin/python \
        --require-hashes --requirement requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN tools/bin/python -m pip wheel --no-build-isolation --no-deps --wheel-dir wheels . \
    && tools/bin/uv pip install --no-cache --compile-bytecode --no-deps --python /opt/gramian/bin/python wheels/*.whl

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 gramian \
    && mkdir /data /runs /var/cache/gramian \
    && chown gramian: /data /runs /var/cache/gramian
COPY --from=build /opt/gramian /opt/gramian
# Threads come from the engine, BLAS has one; freed memory goes back at once (read when a process starts).
ENV PATH=/opt/gramian/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_TRIM_THRESHOLD_=65536 \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    MKL_NUM_THREADS=1 \
    NUMBA_CACHE_DIR=/var/cache/gramian
USER gramian
WORKDIR /runs
CMD ["gramian", "--help"]
