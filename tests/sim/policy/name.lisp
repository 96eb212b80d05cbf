;;;; Names and configs of the DNS (doc/naming.md, A2, A21).

(in-package #:clgrpc.tests.policy)

(defun open-with-texts (&optional config)
  "A channel that takes its service config from TXT records, CONFIG by default."
  (open-channel (name-target) config :dns-service-config t))

(defun does-round-robin (channel)
  "CHANNEL does round_robin over b1 and b2."
  (connect channel)
  (await-connections 1 2)
  (let ((results (make-calls channel 10)))
    (all-ok results 10)
    (is (= 5 (of-backend results 1)))))

(define-scenario dns-authority
    ("doc/naming.md: :authority is the name and port of the target.")
  (set-names 1)
  (ok (make-call (open-channel (name-target))))
  (is (equal "svc.test:50051" (attempt-field (first (attempts)) ":authority"))))

(define-scenario dns-unknown-name
    ("doc/naming.md: for a name that does not exist a call fails before its deadline.")
  (let ((result (make-call (open-channel (name-target)) :timeout 10)))
    (ended result :unavailable)
    (between 0 (result-seconds result) 6)))

(define-scenario dns-wait-for-ready-until-it-resolves
    ("Wait for ready: the name appears after a second, and the call is :ok.")
  (let ((call (start-call (open-channel (name-target)) :wait-for-ready t :timeout 20)))
    (sim:wait-for 1)
    (is (null (first call)))
    (set-names 1)
    (ok (result-of call))))

(define-scenario dns-reresolve-on-failure
    ("A61: the backend goes, the DNS names another; the channel finds it." :backends 2)
  (set-names 1)
  (let ((channel (open-channel (name-target))))
    (ok (make-call channel))
    (set-names 2)
    (kill 1)
    (let ((result (make-call channel :wait-for-ready t :timeout 15)))
      (ok result)
      (is (equal "b2" (result-backend result))))))

(define-scenario dns-update-loses-no-call
    ("A61: the DNS changes from b1, b2 to b1, b3 and b2 drains: of 300 calls none fails."
     :backends 3 :rules '((:delay 1/500)))
  (let ((channel (open-to-names *round-robin* 1 2)))
    (sim:at 1/2 (lambda ()
                  (set-names 1 3)
                  (do-to-lines #'drain-line (backend 2))))
    (let ((results (make-calls channel 300 :parallel 3 :pause 1/50)))
      (all-ok results 300)
      (is (plusp (of-backend results 3)))
      (is (= 1 (length (lines 1)))))))

(define-scenario dns-txt-applied
    ("A2 Encoding in DNS TXT Records: grpc_config selects round_robin." :backends 2)
  (set-names 1 2)
  (set-text-config *round-robin*)
  (does-round-robin (open-with-texts)))

(define-scenario dns-txt-many-strings
    ("A2 Encoding in DNS TXT Records: 700 octets in strings of 255 are put together." :backends 2)
  (set-names 1 2)
  (set-text-config (json "{'methodConfig':[{'name':[{'service':'~A'}]}],~
                          'loadBalancingConfig':[{'round_robin':{}}]}"
                         (make-string 600 :initial-element #\x)))
  (does-round-robin (open-with-texts)))

(define-scenario dns-txt-choice-language
    ("A2 Canarying Changes: a choice for another language is passed over." :backends 2)
  (set-names 1 2)
  (set-text (json "grpc_config=[{'clientLanguage':['cobol'],'serviceConfig':~A},~
                   {'serviceConfig':~A}]"
                  (balancing "pick_first") *round-robin*))
  (does-round-robin (open-with-texts)))

(define-scenario dns-no-txt-uses-default
    ("A21 Behavior on receiving a new gRPC Config: without a TXT record, the default."
     :backends 2)
  (set-names 1 2)
  (does-round-robin (open-with-texts *round-robin*)))

(define-scenario dns-txt-invalid-without-default
    ("A21 Behavior on receiving a new gRPC Config: the first is invalid, so all calls fail.")
  (set-names 1)
  (set-text-config (method-config "'timeout':'never'"))
  (ended (make-call (open-with-texts)) :unavailable)
  (came 0)
  (is (null (lines))))
