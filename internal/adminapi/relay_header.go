package adminapi

const (
	// RelayHeader is the header by which a request names the relay that it is meant for, with the identity of its data.
	RelayHeader = "Hubrelay-Relay"
	// CodeWrongRelay is the error of another relay. It has done nothing.
	CodeWrongRelay = "421.wrong-relay"
)
