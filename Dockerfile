# The web interfaces and the REST servers of both programs, for this computer alone:
#
#   docker build -t captioner-and-nmt .
#   docker run --rm --init -p 127.0.0.1:7860:7860 -p 127.0.0.1:7861:7861 captioner-and-nmt
#
# The captioner is at http://127.0.0.1:7860, the translator at http://127.0.0.1:7861.
# Other commands run as well: docker run --rm captioner-and-nmt nmt translate "Good morning."
# So do the REST servers; docs/rest.md describes them:
#
#   docker run --rm -p 127.0.0.1:5000:5000 captioner-and-nmt nmt serve --host 0.0.0.0
#   docker run --rm -p 127.0.0.1:5001:5001 captioner-and-nmt captioner serve --host 0.0.0.0
FROM python:3.11-slim

WORKDIR /source
COPY . .
RUN python -m pip install --no-cache-dir -c constraints.txt . "./apps[web,serve]"

RUN useradd --create-home user
USER user
WORKDIR /home/user
EXPOSE 5000 5001 7860 7861
CMD ["bash", "-c", "captioner web --host 0.0.0.0 --port 7860 & nmt web --host 0.0.0.0 --port 7861 & wait -n"]
