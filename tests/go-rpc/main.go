// Plays the other side of the crate go-rpc with Go's own net/rpc and encoding/gob.
//
//	peer serve         listens on 127.0.0.1, prints its address, and serves until its standard input ends
//	peer call ADDRESS  calls every method of the server at ADDRESS, and exits 1 with a line for each surprise
//
// Both sides have the same services:
//
//	Echo.Everything    returns its argument, which holds a value of every kind
//	Echo.Sample        returns such a value
//	Echo.Fail          fails with the text that is its argument
//	Gate.Wait          answers once there is a permit, and takes it
//	Gate.Open          adds permits
package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"os"
	"reflect"
	"strings"
	"time"
)

type Point struct{ X, Y int }

type Shape interface{ Area() float64 }

type Circle struct{ Radius float64 }

func (c Circle) Area() float64 { return 3 * c.Radius * c.Radius }

type Square struct{ Side float64 }

func (s *Square) Area() float64 { return s.Side * s.Side }

type Node struct {
	Label string
	Next  *Node
}

// Celsius writes itself as bytes. (Text marshalers are in the format, but Go's gob leaves them alone.)
type Celsius struct{ degrees int }

func (c Celsius) MarshalBinary() ([]byte, error) { return fmt.Appendf(nil, "%d °C", c.degrees), nil }

func (c *Celsius) UnmarshalBinary(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%d °C", &c.degrees)
	return err
}

type Everything struct {
	Bool       bool
	Int        int
	Int8       int8
	Uint       uint64
	Float      float64
	Float32    float32
	Complex    complex128
	Text       string
	NotText    string
	Bytes      []byte
	Array      [3]int
	Strings    []string
	Points     []Point
	Counts     map[string]int
	ByNumber   map[int64]Point
	Empty      map[string]bool
	Nested     Point
	Pointer    *Point
	NoPointer  *Point
	List       *Node
	Shape      Shape
	NoShape    Shape
	Shapes     []Shape
	Any        any
	Anys       map[string]any
	When       time.Time
	Wait       time.Duration
	Heat       Celsius
	unexported int
}

func sample() Everything {
	return Everything{
		Bool: true, Int: -1 << 40, Int8: -128, Uint: 1<<64 - 1, Float: -2.5, Float32: 0.1, Complex: complex(1, -2),
		Text: "größe", NotText: "\xff\xfe", Bytes: []byte{0, 1, 255}, Array: [3]int{1, 0, -3},
		Strings: []string{"a", "", "c"}, Points: []Point{{1, 2}, {}, {0, 4}},
		Counts: map[string]int{"one": 1, "": 0}, ByNumber: map[int64]Point{-7: {7, 0}},
		Empty: map[string]bool{}, Nested: Point{0, 9}, Pointer: &Point{5, 6},
		List:  &Node{"first", &Node{"second", &Node{"", &Node{Label: "last"}}}},
		Shape: Circle{1.5}, Shapes: []Shape{&Square{2}, nil, Circle{}, &Square{3}},
		Any: []string{"in", "any"},
		Anys: map[string]any{
			"string": "s", "int": -4, "bool": false, "nil": nil, "list": []string{""}, "point": Point{3, 4},
			"time": time.Unix(1, 2).UTC(), "deep": map[string]any{"bytes": []byte("b"), "float": 1e300},
		},
		When: time.Date(2026, 11, 21, 14, 0, 0, 123456789, time.UTC), Wait: 90 * time.Second, Heat: Celsius{-40},
	}
}

type Echo struct{}

func (Echo) Everything(argument Everything, reply *Everything) error {
	*reply = argument
	return nil
}

// Check wants to be called with the sample.
func (Echo) Check(argument Everything, reply *bool) error {
	if *reply = reflect.DeepEqual(argument, sample()); !*reply {
		return fmt.Errorf("not the sample: %+v", argument)
	}
	return nil
}

func (Echo) Sample(_ struct{}, reply *Everything) error {
	*reply = sample()
	return nil
}

func (Echo) Fail(text string, _ *struct{}) error { return errors.New(text) }

type Gate struct{ permits chan struct{} }

func (g Gate) Wait(_ struct{}, _ *struct{}) error {
	<-g.permits
	return nil
}

func (g Gate) Open(permits int, _ *struct{}) error {
	for range permits {
		g.permits <- struct{}{}
	}
	return nil
}

func serve() error {
	if err := errors.Join(rpc.Register(Echo{}), rpc.Register(Gate{make(chan struct{}, 1000)})); err != nil {
		return err
	}
	rpc.HandleHTTP()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, nil)
}

func call(address string) (surprises []string) {
	surprise := func(format string, arguments ...any) {
		surprises = append(surprises, fmt.Sprintf(format, arguments...))
	}
	client, err := rpc.DialHTTP("tcp", address)
	if err != nil {
		return []string{err.Error()}
	}
	defer client.Close()

	for round := range 2 { // the second time all types are known
		var everything Everything
		if err := client.Call("Echo.Everything", sample(), &everything); err != nil {
			surprise("Echo.Everything %d: %v", round, err)
		} else if !reflect.DeepEqual(everything, sample()) {
			surprise("Echo.Everything %d: %+v", round, everything)
		}
	}
	var zero Everything
	if err := client.Call("Echo.Everything", Everything{}, &zero); err != nil || !reflect.DeepEqual(zero, Everything{}) {
		surprise("Echo.Everything of nothing: %v %+v", err, zero)
	}

	for _, expected := range []struct {
		method   string
		argument any
		text     string
	}{
		{"Echo.Fail", "no such machine", "no such machine"},
		{"Echo.Nothing", struct{}{}, "rpc: can't find method Echo.Nothing"},
		{"Other.Fail", "x", "rpc: can't find service Other.Fail"},
		{"nodot", struct{}{}, "rpc: service/method request ill-formed: nodot"},
		{"Echo.Fail", 7, "gob: "},
	} {
		err := client.Call(expected.method, expected.argument, &struct{}{})
		if _, isAnswer := err.(rpc.ServerError); !isAnswer || !strings.HasPrefix(err.Error(), expected.text) {
			surprise("%s: %v", expected.method, err)
		}
	}

	second, err := rpc.DialHTTP("tcp", address)
	if err != nil {
		return append(surprises, err.Error())
	}
	defer second.Close()
	var waiting []*rpc.Call
	for range 200 {
		waiting = append(waiting, client.Go("Gate.Wait", struct{}{}, &struct{}{}, nil))
	}
	if err := second.Call("Gate.Open", 199, &struct{}{}); err != nil {
		surprise("Gate.Open: %v", err)
	}
	if err := client.Call("Gate.Open", 1, &struct{}{}); err != nil {
		surprise("Gate.Open beside waiting calls: %v", err)
	}
	for _, wait := range waiting {
		if <-wait.Done; wait.Error != nil {
			surprise("Gate.Wait: %v", wait.Error)
		}
	}
	return surprises
}

func main() {
	gob.Register(Circle{})
	gob.Register(&Square{})
	gob.Register(Point{})
	gob.Register(time.Time{})
	gob.Register(map[string]any{})
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		fmt.Fprintln(os.Stderr, serve())
		os.Exit(1)
	case len(os.Args) == 3 && os.Args[1] == "call":
		if surprises := call(os.Args[2]); len(surprises) > 0 {
			fmt.Println(strings.Join(surprises, "\n"))
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: peer serve | peer call ADDRESS")
		os.Exit(2)
	}
}
