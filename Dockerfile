# An image that runs coldlog and its jobs: Python, a JRE, the package and its jars; no root, no compiler, no checkout.
#
#     make image                          builds dist/*.whl, then the image `coldlog`
#     docker run --rm coldlog --help      every command of coldlog; docs/how-to/run-in-a-container.md
#
# The base has the Python that the tests use, and Debian 12, whose Java is 17, the oldest that Spark 4 takes.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS packages
# A mirror of the package index, if there is one: --build-arg PIP_INDEX_URL=...
ARG PIP_INDEX_URL
# What a container needs; notebooks are for people with a browser.
ARG EXTRAS=records,s3,spark,validate,kafka,serve
COPY constraints.txt dist/coldlog-*.whl /build/
COPY .jars /build/jars
# The variable also applies to the packages that builds need; pyspark is built from sources.
RUN python -m venv /opt/coldlog \
    && PIP_CONSTRAINT=/build/constraints.txt /opt/coldlog/bin/pip install --no-cache-dir "$(ls /build/*.whl)[${EXTRAS}]" \
    && COLDLOG_JARS=/opt/coldlog/jars /opt/coldlog/bin/coldlog setup --from /build/jars

FROM python:${PYTHON}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
# Hadoop asks the system for the user's name, so the user must be in /etc/passwd: --build-arg UID=... chooses another.
ARG UID=10001
RUN useradd --uid ${UID} --create-home coldlog \
    && install --directory --owner=coldlog --group=coldlog /data /var/cache/coldlog
COPY --from=packages /opt/coldlog /opt/coldlog
ENV PATH=/opt/coldlog/bin:$PATH \
    COLDLOG_JARS=/opt/coldlog/jars \
    COLDLOG_CACHE=/var/cache/coldlog
USER ${UID}
WORKDIR /data
ENTRYPOINT ["coldlog"]
CMD ["--help"]
