module github.com/hubrelay/hubrelay

go 1.26
