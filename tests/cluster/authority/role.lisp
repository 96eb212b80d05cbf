;;;; Identities, patterns of them, and permissions.

(in-package #:clgrpc.tests.authority)

(test identities-of-certificates
  "A SPIFFE identity counts with its trust domain and path; the common name only without others."
  (is (equal '("spiffe://example/nodes/b" "a.example")
             (certificate-identities '((:dns "a.example") (:ip "1.2.3.4")
                                       (:uri "spiffe://example/nodes/b"))
                                     "CN=d")))
  (is (equal '("d") (certificate-identities '((:uri "https://x/c")) "CN=d")))
  (is (equal '("d") (certificate-identities '((:ip "1.2.3.4")) "O=x,CN=d")))
  ;; of several SPIFFE identities none is proved
  (is (equal '("a.example") (certificate-identities '((:uri "spiffe://example/a") (:dns "a.example")
                                                      (:uri "spiffe://example/b"))
                                                    "CN=d")))
  (is (equal '() (certificate-identities '((:uri "spiffe://example/a") (:uri "spiffe://example/b"))
                                         "CN=d"))
      "nor is the common name then")
  (is (equal '() (certificate-identities '((:uri "spiffe://example/a") (:uri "https://x/c"))
                                         "CN=d")))
  (is (equal '() (certificate-identities '((:dns "")) "CN=d")))
  (is (equal '() (certificate-identities '() "O=x")))
  ;; what only looks like a name
  (is (equal '() (certificate-identities '() "O=x\\,XCN=d")))
  (is (equal '() (certificate-identities '() "O=x\\,CN=d,CN=e")))
  (is (equal '() (certificate-identities '() "O=\"x,CN=d\",CN=e")))
  (is (equal '() (certificate-identities '((:dns "spiffe://example/a")) "CN=spiffe://example/a"))))

(test what-is-no-spiffe-identity
  "A URI that is not written as a SPIFFE identity proves nothing, and the common name nothing more."
  (loop for text in (list "spiffe://d.example/a" "spiffe://d-1_2/A/b.c/D-e_f/..."
                          (format nil "spiffe://d/~A" (make-string 2037 :initial-element #\a)))
        do (is (equal (list text) (certificate-identities (list (list :uri text)) "CN=d")) text))
  (loop for text in (list "spiffe://d" "spiffe://d/" "spiffe:///a" "spiffe://D/a" "SPIFFE://d/a"
                          "spiffe://d:1/a" "spiffe://u@d/a" "spiffe://d/a/" "spiffe://d//a"
                          "spiffe://d/a/../b" "spiffe://d/./b" "spiffe://d/a?b" "spiffe://d/a#b"
                          "spiffe://d/a%2Fb" "spiffe://d/a b" "spiffe://d/*"
                          (format nil "spiffe://d/a~Cb" (code-char 0))
                          (format nil "spiffe://d/~A" (make-string 2038 :initial-element #\a)))
        do (is (equal '() (certificate-identities (list (list :uri text)) "CN=d")) text)))

(defun matched-p (pattern identity &optional name)
  (authority::matches-p (authority::make-pattern pattern) identity name))

(test patterns-of-identities
  "A * is one label or one segment; what is a DNS name is never a SPIFFE identity."
  (loop for (pattern identity name) in '(("a.example" "a.example")
                                         ("*.example" "a.example")
                                         ("a.*.example" "a.b.example")
                                         ("*" "a.example") ("*" "spiffe://d/a")
                                         ("spiffe://d/a/b" "spiffe://d/a/b")
                                         ("spiffe://d/*/b" "spiffe://d/a/b")
                                         ("{name}" "n1" "n1")
                                         ("{name}.nodes" "n.1.nodes" "n.1")
                                         ("spiffe://d/nodes/{name}" "spiffe://d/nodes/n1" "n1")
                                         ("spiffe://d/*/{name}" "spiffe://d/x/n1" "n1"))
        do (is-true (matched-p pattern identity name) "~A ~A ~A" pattern identity name))
  (loop for (pattern identity name) in '(("a.example" "A.example")
                                         ("a.example" "b.a.example") ("a.example" "a.example.b")
                                         ("*.example" "a.b.example") ("*.example" ".example")
                                         ("*.example" "spiffe://d.example")
                                         ("spiffe://d/*" "spiffe://d/a/b")
                                         ("spiffe://d/*" "spiffe://d/")
                                         ("spiffe://d/a" "spiffe://e/a")
                                         ("{name}" "n1" "n2") ("{name}" "n1")
                                         ("{name}" "spiffe://d/n1" "n1")
                                         ("spiffe://d/{name}" "spiffe://d/x/n1" "n1")
                                         ("spiffe://d/{name}" "spiffe://d/x/n1" "x/n1")
                                         ("spiffe://d/{name}" "spiffe://d/.." "..")
                                         ("spiffe://d/{name}" "spiffe://e/n1" "n1"))
        do (is-false (matched-p pattern identity name) "~A ~A ~A" pattern identity name)))

(test permissions-are-checked
  (loop for permission in '((:start . "a") (:work . "*") ((:work "charge") . "spiffe://d/w/*")
                            (:join . "{name}") (:read . "anyone"))
        do (is (equal permission (check-permission permission))))
  (loop for permission in '((:run . "a") (:start) "start=a" (:start . "") (:start . "a/b")
                            (:start . "a*.example") (:start . "spiffe://d") (:start . "spiffe:///a")
                            (:start . "spiffe://*/a") (:join . "spiffe://{name}/a")
                            (:start . "{name}") ((:start "charge") . "a") ((:work charge) . "a")
                            ((:work "a" "b") . "a"))
        do (signals misuse (check-permission permission))))

(test roles-are-given-to-identities
  "That of a permission, to each identity that its pattern matches, for its kind of tasks."
  (flet ((given-p (permission identities role &optional kind name)
           (and (authority::given-p (authority::parse-permission permission) identities role kind
                                    name)
                t)))
    (loop for (permission given refused)
            in '(((:read . "a") ((("b" "a") :read)) ((("b") :read) (() :read) (("a") :start)))
                 ((:read . "anyone") ((() :read) (("a") :read)) ((() :start)))
                 (((:work "x") . "a") ((("a") :work "x") (("a") :work)) ((("a") :work "y")))
                 ((:work . "*") ((("a") :work "x") (("a") :work)) ((() :work "x")))
                 ((:join . "{name}") ((("a") :join nil "a")) ((("a") :join nil "b")
                                                              (("a") :raft nil "a"))))
          do (dolist (peer given)
               (is (eq t (apply #'given-p permission peer)) "~S ~S" permission peer))
             (dolist (peer refused)
               (is (eq nil (apply #'given-p permission peer)) "~S ~S" permission peer)))))

(test refusals-name-the-peer-and-the-role
  (loop for (text identities role kind name)
          in '(("the peer, which has shown no certificate with a name, may not read" () :read)
               ("a, b may not work x" ("a" "b") :work "x")
               ("a may not join as n" ("a") :join nil "n")
               ("a may not send as n" ("a") :raft nil "n"))
        do (is (string= (format nil "~A: no permission gives that role" text)
                        (authority::refusal-text identities role kind name)))))

(test who-starts-is-warned
  "If everybody who can connect has the roles, or nobody has; and of names that nobody proves."
  (flet ((credentials (&rest asked)
           (apply #'loop:tls-credentials
                  :certificate (namestring (support:certificate-file "server.pem"))
                  :key (namestring (support:certificate-file "server.key"))
                  (and asked (list :roots (namestring (support:certificate-file "ca.pem")))))))
    (let ((none (make-authority '())) (anyone (make-authority '((:read . "anyone"))))
          (named (make-authority '((:read . "anyone") (:work . "*.example"))))
          (mutual (credentials :asked)))
      (is (search "each peer that can connect may read" (authority-warning none nil "read")))
      (is (search "no call may read" (authority-warning none mutual "read")))
      (is (null (authority-warning anyone nil "read")))
      (is (null (authority-warning anyone (credentials) "read")))
      (is (search "does not request certificates" (authority-warning named nil "read")))
      (is (search "does not request certificates" (authority-warning named (credentials) "read")))
      (is (null (authority-warning named mutual "read")))
      (is-true (authority-p named)))))
