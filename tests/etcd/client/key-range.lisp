;;;; Keys and ranges of them.

(in-package #:clgrpc.tests.etcd)

(test ranges-of-keys
  (flet ((range (&rest arguments)
           (mapcar (lambda (octets) (coerce octets 'list))
                   (multiple-value-list
                    (destructuring-bind (&key prefix from to) arguments
                      (clgrpc.etcd::range-of prefix from to))))))
    (is (equal '((97 47) (97 48)) (range :prefix "a/")))
    (is (equal '((97 255 255) (98)) (range :prefix (octets-of 97 255 255))))
    (is (equal '((255 255) (0)) (range :prefix (octets-of 255 255))))
    (is (equal '((0) (0)) (range :prefix "")))
    (is (equal '((97) (98)) (range :from "a" :to "b")))
    (is (equal '((97) (0)) (range :from "a")))
    (is (equal '((0) (98)) (range :to "b")))
    (signals misuse (range))
    (signals misuse (range :prefix "a" :to "b")))
  (is (equalp (octets-of 195 164) (clgrpc.etcd::key-octets "ä")))
  (signals misuse (clgrpc.etcd::key-octets ""))
  (signals misuse (clgrpc.etcd::key-octets :a)))

(test keys-are-printed-as-far-as-80-characters
  (loop for (length printed) in '((80 "\"~A\"") (81 "\"~A\"…"))
        for key = (base:string-octets (make-string length :initial-element #\k))
        do (is (equal (format nil printed (make-string 80 :initial-element #\k))
                      (with-output-to-string (stream) (clgrpc.etcd::write-key key stream))))))

(test keys-that-are-no-text-are-printed
  "Entries and watches of a log or a debugger may have keys of other programs."
  (let ((engine (let ((base:*log-function* nil)) (memory:make-engine)))
        (key (octets-of 255 1)))
    (unwind-protect
         (let ((etcd (memory:connect engine)))
           (etcd:put etcd key "1")
           (is (search "octets" (princ-to-string (etcd:fetch etcd key))))
           (let ((watch (etcd:watch etcd (constantly nil) :key key)))
             (is (search "open" (princ-to-string watch)))
             (etcd:cancel-watch watch))
           (etcd:close-etcd etcd))
      (memory:close-engine engine))))
