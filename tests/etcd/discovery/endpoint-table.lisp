;;;; What is known of a name, from entries of the store.

(in-package #:clgrpc.tests.discovery)

(defun entry (key text &optional (revision 1))
  (flet ((octets (text)
           (if (stringp text) (clgrpc.base:string-octets text) text)))
    (clgrpc.etcd::%make-entry (octets key) (octets text) revision revision 1 0)))

(defun said (address &optional metadata)
  (format nil "{\"Op\":0,\"Addr\":\"~A\",\"Metadata\":~:[null~;~:*~A~]}" address metadata))

(defun serving (endpoint-table)
  (mapcar #'discovery:endpoint-address
          (clgrpc.discovery::serving-endpoints (clgrpc.discovery::all-endpoints endpoint-table))))

(test endpoint-tables
  "Servers come, change, and go; those that drain are left out unless there are no others."
  (let ((endpoint-table (clgrpc.discovery::make-endpoint-table "g")))
    (flet ((put (key text &optional (revision 1))
             (clgrpc.discovery::note-change
              endpoint-table (clgrpc.etcd::make-change :put (entry key text revision) nil)))
           (away (key)
             (clgrpc.discovery::note-change
              endpoint-table (clgrpc.etcd::make-change :removal (entry key "") nil))))
      (is (null (serving endpoint-table)))
      (put "g/b" (said "h:2"))
      (put "g/a" (said "h:1"))
      (put "g/x" "nonsense")
      (is (equal '("h:1" "h:2") (serving endpoint-table)))
      (put "g/a" (said "h:1" "{\"state\":\"draining\"}"))
      (is (equal '("h:2") (serving endpoint-table)))
      (put "g/b" (said "h:2" "{\"state\":\"draining\"}"))
      (is (equal '("h:1" "h:2") (serving endpoint-table)) "nothing else is there")
      (put "g/b" (said "h:2"))
      (put "g/a" "no more")
      (is (equal '("h:2") (serving endpoint-table)) "what says nothing is no server")
      (away "g/b")
      (is (null (serving endpoint-table)))
      ;; two keys with one address, as of a server that was killed and its successor
      (put "g/1" (said "h:5" "{\"state\":\"draining\"}") 7)
      (put "g/2" (said "h:5") 8)
      (is (equal '("h:5") (serving endpoint-table)))
      (is (eq :serving (discovery:endpoint-state
                        (first (clgrpc.discovery::all-endpoints endpoint-table)))))
      (away "g/2")
      (is (eq :draining (discovery:endpoint-state
                         (first (clgrpc.discovery::all-endpoints endpoint-table))))))))

(test endpoint-tables-are-bounded
  (let ((endpoint-table (clgrpc.discovery::make-endpoint-table "g")))
    (dotimes (i (+ 5 clgrpc.discovery::+most-endpoints+))
      (clgrpc.discovery::note-put endpoint-table (entry (format nil "g/~D" i)
                                                        (said (format nil "h:~D" i)))))
    (is (= clgrpc.discovery::+most-endpoints+ (length (serving endpoint-table))))
    (clgrpc.discovery::note-put endpoint-table (entry "g/0" (said "other:1")))
    (is (string= "other:1" (first (serving endpoint-table))) "what is known may change")
    (is-false (clgrpc.discovery::incomplete-p endpoint-table))
    (clgrpc.discovery::note-change
     endpoint-table (clgrpc.etcd::make-change :removal (entry "g/0" "") nil))
    (is-true (clgrpc.discovery::incomplete-p endpoint-table)
             "there is room for one that was left out")))

(test keys-that-are-no-text
  "A key need not be UTF-8: what it says of a server counts as Go's package has it, and others are
not taken for it. A key that is very long is no server's."
  (let ((endpoint-table (clgrpc.discovery::make-endpoint-table "g"))
        (wrong (octets-of 103 47 255 254)))
    (flet ((put (key text) (clgrpc.discovery::note-put endpoint-table (entry key text))))
      (put wrong (said "h:1"))
      (put (map 'string #'code-char wrong) (said "h:2"))
      (put (octets-of 103 47 200) "nonsense")
      (put (make-string 4096 :initial-element #\g) (said "h:3"))
      (put (make-string 4097 :initial-element #\g) (said "h:4"))
      (is (equal '("h:1" "h:2" "h:3") (sort (serving endpoint-table) #'string<)))
      (put wrong (octets-of 255))
      (is (equal '("h:2" "h:3") (sort (serving endpoint-table) #'string<)))
      (put wrong (said "h:4"))
      (clgrpc.discovery::note-change
       endpoint-table (clgrpc.etcd::make-change :removal (entry wrong "") nil))
      (is (equal '("h:2" "h:3") (sort (serving endpoint-table) #'string<))))))

(test configs-of-endpoint-tables
  (let ((endpoint-table (clgrpc.discovery::make-endpoint-table "g")))
    (clgrpc.discovery::note-config endpoint-table (entry "c" "{}"))
    (is (string= "{}" (clgrpc.discovery::endpoint-table-config endpoint-table)))
    (clgrpc.discovery::note-config endpoint-table nil)
    (is (null (clgrpc.discovery::endpoint-table-config endpoint-table)))
    (clgrpc.discovery::note-config endpoint-table (entry "c" (octets-of 123 34 255 34 125)))
    (signals grpc:service-config-error
      (clgrpc.config:parse-service-config
       (clgrpc.discovery::endpoint-table-config endpoint-table)))))
