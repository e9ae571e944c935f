// Package docker is the driver for migrations between Docker hosts. A server is a Docker daemon, and an instance is the
// container whose name is the ID of the instance. The program hubrelay-docker contains the driver.
//
//	migration:
//	  driver:
//	    command: [hubrelay-docker]
//	    env: [PATH, SSH_AUTH_SOCK]              # only for ssh://
//	    config: {health_timeout: 2m, settle: 3s, keep_source_volumes: false}
//	  inventory_file: inventory.yaml
//
// # Servers
//
// The settings of a server in the inventory define the connection to its Docker daemon:
//
//	{host: "unix:///var/run/docker.sock"}       Docker's default, also for {}
//	{host: "ssh://user@host"}                   with the program ssh and ~/.ssh of the daemon's user, without
//	                                            prompts; docker must be installed on that host
//	{host: "tcp://host:2376", tls: {ca_file: …, cert_file: …, key_file: …}}
//
// The driver accepts tcp without tls only for loopback. Paths refer to the node, and every node needs the files,
// because any node may run a job. Access to a Docker daemon is root access to its host, so the daemon that runs this
// driver has it too. In a container it needs the socket or, better, a key for ssh. A container keeps its image and all
// of its rights, such as --privileged and paths of the host. Therefore root on a source host is root on the destination
// hosts of its instances. The oldest supported version is Docker 20.10 (API 1.41), which the tests use. The driver uses
// the API version of each host.
//
// # A migration
//
// While the instance runs, the driver checks the requirements on the destination: networks, mounted host paths and
// devices, ports that no other container uses, free names for the container and its volumes, and the processor type. If
// the image is missing, the driver saves it on the source and loads it on the destination, without a registry. The
// image stays there even after a failure. It gets its name there if the name is free.
//
// The driver creates the new container with the complete configuration of the old one. Then it stops the old container,
// copies the volumes, and starts the new one. When the new container is healthy, the driver gives it the name of the
// instance and removes the old one. Its health check must succeed within health_timeout; without a health check it must
// run for settle. The driver moves a stopped container without starting it.
//
// With copy_volumes the driver streams the volumes from host to host without compression (ssh has the option
// Compression for slow connections). It reads them back and compares a checksum (xxHash64) of all entries: names,
// types, contents, modes, owners, times to the second, links, devices and file capabilities. Docker's archives omit
// other extended attributes, ACLs and sockets, and fill holes. Then the driver removes the volumes from the source,
// unless keep_source_volumes is set or another container uses them. It marks the volumes of the new container as
// nocopy, so Docker does not fill empty ones from the image.
//
// The containers for copying, which never start, use an empty image, so the image of the instance does not change what
// is copied. The driver loads the empty image on both hosts. It stays there without a name and with the label
// hubrelay.carrier. docker image prune may remove it, and the driver loads it again.
//
// Docker's archives have two more limits, and the migration fails because of them. A modification time must be between
// 1970 and 2262. A relative symbolic link must not lead more than one directory above the volume (Docker reports
// "invalid symlink").
//
// Without copy_volumes the instance starts with new volumes. The old volumes of a stateful instance stay on the source
// under their names, because Docker cannot rename volumes. They prevent the return of the instance to that server until
// an operator removes them (docker volume rm). A stateless instance uses an existing volume of the same name on the
// destination, and the driver never removes that volume. Any instance uses an existing volume with its own driver or
// options, such as NFS, if driver and options are the same on both hosts. copy_volumes rejects such a volume.
//
// The container keeps its network aliases. It keeps fixed addresses that are free in the destination's subnet; the log
// reports the others. MAC addresses, the writable layer and the logs of the container are not moved. The driver cannot
// move containers that were started with --rm, belong to a swarm, are paused, or use volumes, namespaces or links of
// another container.
//
// If the migration fails before the new container is healthy, the driver removes the new container and its volumes, and
// starts the old one again. An example is a port that a program outside of Docker uses. Once the new container is
// healthy, an undo completes the migration, because the new data is not on the source. If the destination does not
// respond, the unfinished container stays there and never starts. The next migration of the instance to that host
// removes it. If the instance may be running there, the source stays stopped until the destination responds.
//
// # Two nodes at once
//
// A migration has a lease, and the highest lease wins. Docker has no compare-and-set for labels, but names are unique,
// and a request for a name that does not exist fails. Therefore:
//
//   - A lease claims both hosts with an empty volume, hubrelay.lease.<instance>.<lease>. The driver removes the volumes
//     of lower leases. One volume stays on each host; do not remove it.
//   - The names of containers in transit contain the lease. <instance>.arriving-<lease>.<job> is the new container.
//     <instance>.carrier-<lease> mounts the volumes for copying and never starts. <instance>.leaving-<lease>.… is the
//     old container. Before the new one starts, leaving is replaced by left. A higher lease adopts the containers by
//     renaming them. The driver addresses them by name, so all requests of an outdated process fail.
//   - The name of the old container also contains the data to restore it: the job, the new container, whether the old
//     one was running, and its restart policy. The driver clears the restart policy during the migration, so a restart
//     of Docker does not start the old container.
//   - Docker blocks other requests for a container while files are copied from or to it. So a carrier can be adopted
//     only after the connection of the former process has ended. TCP keep-alive, or ServerAliveInterval with ssh, ends
//     the connection of a frozen node.
//
// Two requests use no name with a lease: the first rename of the source, and creating objects on the destination. A
// process that was suspended just before one of them detects afterwards that it is outdated, and reverts the request.
// For that moment the running instance has another name. If the process is killed in that moment, the next migration
// reverts the rename.
//
// The existing names determine the next step, so it does not depend on the memory of a process. Before Docker 23,
// docker volume prune also removes the claims. docker container prune removes the containers in transit. Do not run
// these commands during a migration.
//
// This package imports only relay, plugins/sdk and Docker's client.
package docker
