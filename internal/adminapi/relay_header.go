package adminapi

const (
	// RelayHeader is the header by which a request names the relay that it is meant for, with the identity of its data.
	RelayHeader = "Hubrelay-Relay"
	// WarningHeader is the header of responses that describes how the running configuration differs from the file, in
	// percent-encoding (RFC 3986). It is missing if they are equal.
	WarningHeader = "Hubrelay-Warning"
	// CodeWrongRelay is the error of another relay. It has done nothing.
	CodeWrongRelay = "421.wrong-relay"
)
