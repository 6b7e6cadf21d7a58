package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
)

var surprises int

func expect(what string, got, want interface{}) {
	if !reflect.DeepEqual(got, want) {
		surprises++
		fmt.Fprintf(os.Stderr, "%s: got %#v, want %#v\n", what, got, want)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (p *plugin) does(what, method string, argument, reply interface{}) {
	expect(what+": error", text(p.call(method, argument, reply)), "")
}

// probe calls every method with its real argument and reply types, over two connections at once, and says what is not as
// the contract has it.
func probe(machine string) {
	saved := life(machine)
	changes(machine, saved)
	end(machine, saved)
	if surprises > 0 {
		os.Exit(1)
	}
}

func wishes(flags []flag) *RPCFlags {
	values, _, _ := options([]string{"--harvester-vm-namespace=shop", "--harvester-cluster-name", "demo", "--harvester-disk-info",
		`{"disks":[{"imageName":"default/leap","bootOrder":1,"size":40}]}`, "--harvester-network-info",
		`{"interfaces":[{"networkName":"default/vlan1"}]}`, "probe"}, flags)
	return &RPCFlags{Values: values}
}

// life is `create` and the getters, with a second connection beside the first.
func life(machine string) []byte {
	p := start("harvester")
	other := p.dial()
	p.configure(base(machine))
	expect("GetMachineName", p.machine, machine)
	expect("DriverName", p.ask("DriverName"), "harvester")
	flags := p.flags()
	expect("flags", len(flags), 35)
	expect("first flag", flags[0].name(), "harvester-kubeconfig-content")
	expect("flag 31", flags[30], &IntFlag{Name: "harvester-reserved-memory-size", EnvVar: "HARVESTER_RESERVED_MEMORY_SIZE",
		Value: -1, Usage: flags[30].(*IntFlag).Usage})

	// wrong in several ways: all said, one line, no quotes
	bad := wishes(flags)
	bad.Values["harvester-cpu-count"] = 0
	bad.Values["harvester-enable-secure-boot"] = true
	var given driverOptions = bad
	refused := text(p.call("SetConfigFromFlags", &given, nil))
	expect("both faults", strings.Contains(refused, "at least 1 CPU") && strings.Contains(refused, "needs harvester-enable-efi"), true)
	expect("one plain line", strings.ContainsAny(refused, "\"\n"), false)

	given = wishes(flags)
	p.does("SetConfigFromFlags", "SetConfigFromFlags", &given, nil)
	p.does("PreCreateCheck", "PreCreateCheck", nil, nil)
	// while Create runs, others are answered
	making := p.client.Go("RPCServerDriver.Create", struct{}{}, nil, nil)
	expect("a getter beside Create", p.ask("GetSSHUsername"), "root")
	var name string
	expect("a getter on another connection", text(other.Call("RPCServerDriver.GetMachineName", struct{}{}, &name)), "")
	expect("its answer", name, machine)
	expect("Create", text((<-making.Done).Error), "")
	saved := p.configuration()
	var config struct {
		IPAddress, SSHKeyPath, SSHUser, ServerVersion string
		SSHPort                                       int
	}
	must(json.Unmarshal(saved, &config))
	now, err := p.state()
	expect("GetState", text(err), "")
	expect("state", now, running)
	expect("GetIP", p.ask("GetIP"), config.IPAddress)
	expect("GetSSHHostname", p.ask("GetSSHHostname"), config.IPAddress)
	expect("GetURL", p.ask("GetURL"), "tcp://"+config.IPAddress+":2376")
	expect("GetSSHKeyPath", p.ask("GetSSHKeyPath"), config.SSHKeyPath)
	var port int
	p.does("GetSSHPort", "GetSSHPort", nil, &port)
	expect("port", port, 22)
	key, err := os.Stat(config.SSHKeyPath)
	must(err)
	expect("mode of the key", key.Mode().Perm(), os.FileMode(0o600))
	_, err = p.text("GetIPv6")
	expect("GetIPv6", text(err), "IPv6 address is not set")
	expect("Upgrade", text(p.call("Upgrade", nil, nil)), "rpc: can't find method RPCServerDriver.Upgrade")
	expect("no such service", text(p.client.Call("Other.Close", struct{}{}, nil)), "rpc: can't find service Other.Close")
	expect("no dot", text(p.client.Call("Close", struct{}{}, nil)), "rpc: service/method request ill-formed: Close")
	expect("argument of another type", text(p.call("SetConfigRaw", 7, nil)) != "", true)
	expect("the connection goes on", p.ask("DriverName"), "harvester")
	must(other.Close())
	p.close()
	return saved
}

// changes is stop, start, restart and kill of a stored machine.
func changes(machine string, saved []byte) {
	p := start("harvester")
	p.configure(saved)
	for _, step := range []struct {
		method string
		then   state
	}{{"Stop", stopped}, {"Start", running}, {"Restart", running}, {"Kill", stopped}} {
		p.does(step.method, step.method, nil, nil)
		now, err := p.state()
		expect("GetState", text(err), "")
		expect("state after "+step.method, now, step.then)
	}
	_, err := p.text("GetURL")
	expect("URL of a stopped machine", text(err), "Host is not running")
	// the old name of the service, from an old client
	expect("Close", text(p.client.Call("RpcServerDriver.Close", struct{}{}, nil)), "")
	expect("exit status", p.ended(), 0)
}

// end is `rm`, by a client that goes away without a word afterwards.
func end(machine string, saved []byte) {
	p := start("harvester")
	p.configure(saved)
	p.does("Remove", "Remove", nil, nil)
	p.does("Remove again", "Remove", nil, nil)
	_, err := p.state()
	expect("state of what is gone", strings.Contains(text(err), "not found"), true)
	must(p.client.Close())
	expect("exit status after a client that went away", p.ended(), 1)
}
