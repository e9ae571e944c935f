// Package directory is the migration driver builtin:directory. A server is a directory, and an instance is a directory
// in it. A migration stops the instance, copies it with checksums, and starts it on the other server.
//
//	migration: {driver: {command: ["builtin:directory"]}, inventory_file: inventory.yaml}
//
// # Servers
//
// The settings of a server in the inventory are {path: /srv/a}: the absolute path of an existing, writable directory,
// local or mounted. Directories of two servers must not contain each other. Every node needs all of them under the same
// paths, because any node may run a job. Make mount points unwritable, so an unmounted server is an error and not an
// empty server.
//
// # Instances
//
// An instance is the directory <path>/<instance>:
//
//	volumes/<name>/…   its data, moved with copy_volumes
//	instance.json      {"command": ["./run", "--fast"], "env": {"PORT": "8000"}}, if the instance has a command
//	output.log         the output of the command: 4 MiB, and as much again in output.log.1
//	.keeper.*          files of the agent, never moved
//	…                  other files are always moved
//
// The command runs in the instance's directory, as the daemon's user, in its own process group. Its environment
// contains the variables of instance.json, HUBRELAY_INSTANCE, and PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ
// and TMPDIR if the driver has them (`driver: {env: [PATH, LANG]}` copies the daemon's). The command has all rights of
// the daemon's user. Therefore the server's directory, the instance's directory and instance.json must belong to that
// user or to root, and no other user may write to them. Otherwise the driver rejects them.
//
// # Agents
//
// An agent is a process that keeps the command of one instance running. It restarts the command after it ended, after
// 0.1 to 45 s. It stops it with SIGTERM and, ten seconds later, SIGKILL to its process group. Processes outside of that
// group are not stopped; a migration fails if they continue to write. Agents continue without the driver and the
// daemon, and are found by their lock on .keeper.lock. If there is none, the driver starts one when it is configured.
// Killing an agent kills its command (Linux). The driver stops the agents of its relay whose instance or server is no
// longer in the inventory. `hubrelay inventory agents` lists and stops them by hand. Their command line is `hubrelay
// agent PATH INSTANCE LEASE STEADY RELAY`. Under systemd a restart of the daemon ends them too, unless the unit
// contains KillMode=process.
//
// # A migration
//
// The source stops, and its directory is renamed to <path>/.hubrelay/<instance>/<lease>/instance. Everything is copied,
// written to the disk, read again, and compared with the checksums (xxHash64) of the source, which must not have
// changed. This detects errors of the driver and other writers, and errors of a disk if the system reads from it; data
// in the page cache is read from there. Then the copy is renamed to its place, the command starts, and after it has run
// for a second the source is removed. Modes, owners, times, symbolic links (never followed), hard links within the
// instance, holes, extended attributes and FIFOs are kept. Sockets are skipped, and a device makes the migration fail.
// Keeping owners requires root. A path below an instance may have up to 3,900 bytes. An instance that contains a mount
// is not moved (Linux), because the mounted data would be removed with the source.
//
// Without copy_volumes the instance starts with empty volumes of the same names, and the source's directory is kept as
// <path>/.hubrelay-kept/<instance>/<job>-<lease>, with its volumes. Only an operator removes it.
//
// After a failure before the command has run on the destination, the source runs again and the destination is cleaned.
// The error of the job names the next step. An interrupted call continues from the state on the disks: complete files
// are not copied again. An instance whose command has run on the destination is not moved back, because its new data is
// not on the source.
//
// # Two nodes at once
//
// Each server has one directory .hubrelay/<instance>/<lease> for every instance that was ever migrated from or to it,
// the work directory of the highest lease. Do not remove it. A higher lease claims it by renaming it. Each irreversible
// step is a rename from or into the work directory by its path, so it fails for an outdated process. Each lease copies
// into directories that it created itself, and adopts files by renaming them, so a late process never writes into the
// directories of its successor. An agent stops only if the work directory of the current lease says so.
//
// An NFS client may cache a path that another client has renamed. The driver lists the directory before each rename,
// which refreshes the cache. Mount with lookupcache=none to be sure. Locks must work (no nolock, no local_lock).
//
// This package must not import the daemon, Redis or other drivers.
package directory
