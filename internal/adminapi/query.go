package adminapi

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
)

// queryField is a member of a request in a query.
type queryField struct {
	name  string
	index []int
}

// queryFields returns the members of a request by their JSON names. They are strings, lists of strings, or numbers.
func queryFields(request reflect.Type) (fields []queryField) {
	for _, f := range reflect.VisibleFields(request) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !f.Anonymous {
			fields = append(fields, queryField{name, f.Index})
		}
	}
	return fields
}

// QueryNames returns the names of the query parameters of a request. A parameter in repeated may have several values.
func QueryNames[Request any]() (single, repeated []string) {
	request := reflect.TypeFor[Request]()
	for _, f := range queryFields(request) {
		if request.FieldByIndex(f.index).Type.Kind() == reflect.Slice {
			repeated = append(repeated, f.name)
		} else {
			single = append(single, f.name)
		}
	}
	return single, repeated
}

// EncodeQuery returns the members of a request that are not zero as query parameters.
func EncodeQuery[Request any](request Request) url.Values {
	query, v := url.Values{}, reflect.ValueOf(request)
	for _, f := range queryFields(v.Type()) {
		switch member := v.FieldByIndex(f.index); {
		case member.IsZero():
		case member.Kind() == reflect.Slice:
			for i := range member.Len() {
				query.Add(f.name, member.Index(i).String())
			}
		default:
			query.Set(f.name, fmt.Sprint(member.Interface()))
		}
	}
	return query
}

// NumberError is an error of [DecodeQuery]. The parameter must be a positive number.
type NumberError struct{ Parameter string }

func (e *NumberError) Error() string { return e.Parameter + " is not a positive number" }

// DecodeQuery returns the request with the values of a query. The error is a [*NumberError].
func DecodeQuery[Request any](query url.Values) (request Request, err error) {
	v := reflect.ValueOf(&request).Elem()
	for _, f := range queryFields(v.Type()) {
		member, text := v.FieldByIndex(f.index), query.Get(f.name)
		switch {
		case member.Kind() == reflect.Slice:
			member.Set(reflect.ValueOf(query[f.name]))
		case text == "":
		case member.CanInt():
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return request, &NumberError{f.name}
			}
			member.SetInt(int64(n))
		default:
			member.SetString(text)
		}
	}
	return request, nil
}
