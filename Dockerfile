# syntax=docker/dockerfile:1
# hubrelay and a redis-server for its embedded default, in one image that runs as an unprivileged user.
#
#   docker build --build-arg VERSION=v1.2.3 -t hubrelay .
#   docker run --name hubrelay -p 8080:8080 -v hubrelay-data:/data hubrelay
#   docker exec hubrelay hubrelay keys create ops --account '*' --hub '*' --capability notifications-publish
#
# The image starts with configs/minimal.yaml. Replace it with -v ./hubrelay.yaml:/etc/hubrelay/hubrelay.yaml:ro.

FROM golang:1.26-bookworm AS build
WORKDIR /src
# Modules first, because they change less often than the source.
COPY go.mod go.sum ./
RUN go mod download
COPY cmd ./cmd
COPY internal ./internal
COPY relay ./relay
COPY sinks ./sinks
COPY plugins ./plugins
ARG VERSION=devel
RUN CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/hubrelay ./cmd/hubrelay-docker ./cmd/hubrelay-brokers ./cmd/hubrelay-notify

FROM debian:bookworm-slim
# ca-certificates: for https webhooks. openssh-client: for hosts of hubrelay-docker with ssh://.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates openssh-client redis-server wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin hubrelay \
 && install -d -o hubrelay -g hubrelay -m 0700 /data
COPY --from=build /out/ /usr/local/bin/
COPY configs/minimal.yaml /etc/hubrelay/hubrelay.yaml
# The public listener must be reachable from outside the container. The health listener stays on loopback, and the admin
# listener is a socket in /data: docker exec CONTAINER hubrelay sinks list. HUBRELAY_ and a key, with __ between levels,
# sets any key.
ENV HUBRELAY_SERVER__LISTEN=0.0.0.0:8080 \
    HUBRELAY_REDIS__DATA_DIR=/data
USER hubrelay
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:9090/readyz"]
# docker stop sends SIGTERM, which drains the relay. Allow more than server.shutdown_grace: docker stop -t 30.
ENTRYPOINT ["/usr/local/bin/hubrelay"]
CMD ["serve", "-c", "/etc/hubrelay/hubrelay.yaml"]
