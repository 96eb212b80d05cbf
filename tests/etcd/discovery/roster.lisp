;;;; What is known of a name, from entries of the store.

(in-package #:clgrpc.tests.discovery)
(in-suite :clgrpc.discovery)

(defun entry (key text &optional (revision 1))
  (flet ((octets (text)
           (if (stringp text) (clgrpc.base:string-octets text) text)))
    (clgrpc.etcd::%make-entry (octets key) (octets text) revision revision 1 0)))

(defun said (address &optional metadata)
  (format nil "{\"Op\":0,\"Addr\":\"~A\",\"Metadata\":~:[null~;~:*~A~]}" address metadata))

(defun serving (roster)
  (mapcar #'discovery:endpoint-address
          (clgrpc.discovery::serving-endpoints (clgrpc.discovery::all-endpoints roster))))

(test rosters
  "Servers come, change, and go; those that drain are left out unless there are no others."
  (let ((roster (clgrpc.discovery::make-roster "g")))
    (flet ((put (key text &optional (revision 1))
             (clgrpc.discovery::note-change
              roster (clgrpc.etcd::make-change :put (entry key text revision) nil)))
           (away (key)
             (clgrpc.discovery::note-change
              roster (clgrpc.etcd::make-change :removal (entry key "") nil))))
      (is (null (serving roster)))
      (put "g/b" (said "h:2"))
      (put "g/a" (said "h:1"))
      (put "g/x" "nonsense")
      (is (equal '("h:1" "h:2") (serving roster)))
      (put "g/a" (said "h:1" "{\"state\":\"draining\"}"))
      (is (equal '("h:2") (serving roster)))
      (put "g/b" (said "h:2" "{\"state\":\"draining\"}"))
      (is (equal '("h:1" "h:2") (serving roster)) "nothing else is there")
      (put "g/b" (said "h:2"))
      (put "g/a" "no more")
      (is (equal '("h:2") (serving roster)) "what says nothing is no server")
      (away "g/b")
      (is (null (serving roster)))
      ;; two keys with one address, as of a server that was killed and its successor
      (put "g/1" (said "h:5" "{\"state\":\"draining\"}") 7)
      (put "g/2" (said "h:5") 8)
      (is (equal '("h:5") (serving roster)))
      (is (eq :serving (discovery:endpoint-state
                        (first (clgrpc.discovery::all-endpoints roster)))))
      (away "g/2")
      (is (eq :draining (discovery:endpoint-state
                         (first (clgrpc.discovery::all-endpoints roster))))))))

(test rosters-are-bounded
  (let ((roster (clgrpc.discovery::make-roster "g")))
    (dotimes (i (+ 5 clgrpc.discovery::+most-endpoints+))
      (clgrpc.discovery::note-put roster (entry (format nil "g/~D" i)
                                                (said (format nil "h:~D" i)))))
    (is (= clgrpc.discovery::+most-endpoints+ (length (serving roster))))
    (clgrpc.discovery::note-put roster (entry "g/0" (said "other:1")))
    (is (string= "other:1" (first (serving roster))) "what is known may change")
    (is-false (clgrpc.discovery::incomplete-p roster))
    (clgrpc.discovery::note-change
     roster (clgrpc.etcd::make-change :removal (entry "g/0" "") nil))
    (is-true (clgrpc.discovery::incomplete-p roster) "there is room for one that was left out")))

(test keys-that-are-no-text
  "A key need not be UTF-8: what it says of a server counts as Go's package has it, and others are
not taken for it. A key that is very long is no server's."
  (let ((roster (clgrpc.discovery::make-roster "g"))
        (wrong (octets-of 103 47 255 254)))
    (flet ((put (key text) (clgrpc.discovery::note-put roster (entry key text))))
      (put wrong (said "h:1"))
      (put (map 'string #'code-char wrong) (said "h:2"))
      (put (octets-of 103 47 200) "nonsense")
      (put (make-string 5000 :initial-element #\g) (said "h:3"))
      (is (equal '("h:1" "h:2") (sort (serving roster) #'string<)))
      (put wrong (octets-of 255))
      (is (equal '("h:2") (serving roster)))
      (put wrong (said "h:4"))
      (clgrpc.discovery::note-change
       roster (clgrpc.etcd::make-change :removal (entry wrong "") nil))
      (is (equal '("h:2") (serving roster))))))

(test configs-of-rosters
  (let ((roster (clgrpc.discovery::make-roster "g")))
    (clgrpc.discovery::note-config roster (entry "c" "{}"))
    (is (string= "{}" (clgrpc.discovery::roster-config roster)))
    (clgrpc.discovery::note-config roster nil)
    (is (null (clgrpc.discovery::roster-config roster)))
    (clgrpc.discovery::note-config roster (entry "c" (octets-of 123 34 255 34 125)))
    (signals grpc:service-config-error
      (clgrpc.config:parse-service-config (clgrpc.discovery::roster-config roster)))))
