// Package source takes over what an upstream sends: another relay, or any platform that speaks its token endpoint and
// websocket. One node reads each source, by a lease; what it has read is validated by ingest like anything else and stored
// together with the place behind it, so that nothing is lost or stored twice, whoever is killed.
//
// An upstream that knows no cursors is read live, at most once; what may be missing is counted.
//
// How the place is kept is the business of package sourcestore, the protocol client's. Neither Redis commands nor websockets nor the
// configuration come in here.
package source
