;;;; XXH64, by vectors of its specification.

(in-package #:clgrpc.tests.balance)

(test xxh64-vectors
  (flet ((hash (text &optional (seed 0)) (balance:xxh64 (string-octets text) seed)))
    (is (= #xEF46DB3751D8E999 (hash "")))
    (is (= #xD24EC4F1A98C6E5B (hash "a")))
    (is (= #x44BC2CF5AD770999 (hash "abc")))
    (is (= #xDE0327B0D25D92CC (hash "abcd")))
    (is (= #x4B09B7D3A233D4B3 (hash "abcdefghijkl")))
    (is (= #xFBCEA83C8A378BF1 (hash "Nobody inspects the spammish repetition")))
    (is (/= (hash "a") (hash "a" 1)))))
