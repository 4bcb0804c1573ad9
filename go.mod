module github.com/scafo/scafo

go 1.26
