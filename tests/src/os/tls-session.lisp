;;;; TLS between two ends of ours; the test carries octets from one to the other.

(in-package #:clgrpc.tests.os)

(defstruct (side (:copier nil)) ssl area (names '()) (choice nil))

(defun carry (from to)
  "Feed the octets that FROM has written to TO; return their number."
  (let ((octets (os:tls-area-octets (side-area from)))
        (count (os:drain-area (side-area from))))
    (replace (os:tls-area-octets (side-area to)) octets :end2 count)
    (when (plusp count) (os:feed-area (side-area to) count))
    count))

(defun shake (side)
  "Continue SIDE's handshake; return its result, or the text of the failure. Of a server, NAMES
becomes the list of the requested names, and CHOICE is the answer."
  (let ((outcome (os:shake-hands (side-ssl side) :choose (lambda (name)
                                                           (push name (side-names side))
                                                           (side-choice side)))))
    (if (eq outcome :failed) (os:session-failure (side-ssl side)) outcome)))

(defun shake-both (client server)
  "Let both shake hands until the end; return the results of the client and of the server."
  (let ((ends (list :more :more)))
    (loop repeat 10
          while (member :more ends)
          do (when (eq :more (first ends)) (setf (first ends) (shake client)))
             (carry client server)
             (when (eq :more (second ends)) (setf (second ends) (shake server)))
             (carry server client))
    (values (first ends) (second ends))))

(defun server-context (&key (certificate "server") (verify :none))
  (let ((context (os:make-tls-context :server verify)))
    (os:add-certificate-chain context (certificate-text (format nil "~A.pem" certificate))
                              certificate)
    (os:add-private-key context (certificate-text (format nil "~A.key" certificate)) certificate
                        nil)
    (unless (eq verify :none) (os:add-roots context (certificate-text "ca.pem") "ca" t))
    context))

(defun client-context (&key (verify :require) cipher-suites)
  (let ((context (os:make-tls-context :client verify :cipher-suites cipher-suites)))
    (os:add-roots context (certificate-text "ca.pem") "ca" nil)
    context))

(defun call-with-sides (function client-context server-context arguments)
  (let* ((before (os:tls-session-count))
         (areas (list (os:make-tls-area) (os:make-tls-area)))
         (client (make-side :area (first areas)
                            :ssl (apply #'os:open-tls-session client-context (first areas) :client
                                        arguments)))
         (server (make-side :area (second areas)
                            :ssl (os:open-tls-session server-context (second areas) :server))))
    (unwind-protect (funcall function client server)
      (dolist (side (list client server)) (os:close-tls-session (side-ssl side)))
      (mapc #'os:free-tls-area areas)
      (is (= before (os:tls-session-count))))))

(defmacro with-sides ((client server &key (client-context '(client-context))
                                       (server-context '(server-context)) (name "localhost")
                                       arguments)
                      &body body)
  "Evaluate BODY with two sides that have not shaken hands. The contexts are freed afterwards."
  (let ((contexts (gensym)))
    `(let ((,contexts (list ,client-context ,server-context)))
       (unwind-protect
            (call-with-sides (lambda (,client ,server) (declare (ignorable ,client)) ,@body)
                             (first ,contexts) (second ,contexts)
                             (list :name ,name ,@arguments))
         (mapc #'os:free-tls-context ,contexts)))))

(defun decrypted (side &optional (room 100000))
  "Two values: the octets that SIDE decrypts from its input, and the result."
  (let ((octets (make-octets room)))
    (multiple-value-bind (end outcome)
        (os:decrypt-octets (side-ssl side) (side-area side) octets 0 room)
      (values (subseq octets 0 end) outcome))))

(defun encrypt (side octets)
  (os:encrypt-octets (side-ssl side) octets 0 (length octets)))

(test settings-of-a-context
  "Partial writes, buffers that move and are released; TLS 1.2 at least; no sessions kept by OpenSSL;
no renegotiation, no compression, and the server's order of ciphers."
  (let ((context (client-context)))
    (unwind-protect
         (flet ((setting (number) (os::ssl-ctx-ctrl context number 0 0)))
           (is (= #x13 (logand #x13 (setting 33)))) ; SSL_CTRL_MODE
           (is (= #x303 (setting 130)))             ; SSL_CTRL_GET_MIN_PROTO_VERSION
           (is (= 0 (setting 45)))                  ; SSL_CTRL_GET_SESS_CACHE_MODE
           (is (logtest #x40000000 (os::ssl-ctx-set-options context 0)))
           (is (= #x620000 (logand #x620000 (os::ssl-ctx-set-options context 0)))))
      (os:free-tls-context context))))

(test tls-handshake
  (with-sides (client server :name "x.test.example")
    (multiple-value-bind (at-client at-server) (shake-both client server)
      (is (eq :done at-client))
      (is (eq :done at-server)))
    (dolist (side (list client server))
      (is (equal "h2" (os:session-alpn (side-ssl side))))
      (is (equal "TLSv1.3" (os:session-version (side-ssl side))))
      (is (equal "TLS_AES_128_GCM_SHA256" (os:session-cipher (side-ssl side))))
      (is (not (os:session-resumed-p (side-ssl side)))))
    (is (equal '("x.test.example") (side-names server)))
    (is (null (os:session-certificate (side-ssl server))))
    (is (equalp (os:certificate-der (certificate-named "server.pem"))
                (os:session-certificate (side-ssl client))))))

(test cipher-suites-asked-for
  "A client offers the given suites, those of each version of TLS separately, and for TLS 1.2 only
suites that HTTP/2 allows."
  (loop with tls-1.2 = #x0303
        for (asked version cipher)
          in `((nil nil "TLS_AES_128_GCM_SHA256")
               ("TLS_CHACHA20_POLY1305_SHA256" nil "TLS_CHACHA20_POLY1305_SHA256")
               ("TLS_AES_256_GCM_SHA384:ECDHE-ECDSA-AES256-GCM-SHA384" nil
                "TLS_AES_256_GCM_SHA384")
               ("ECDHE-ECDSA-AES256-GCM-SHA384" nil "TLS_AES_128_GCM_SHA256")
               ("TLS_AES_256_GCM_SHA384" ,tls-1.2 "ECDHE-ECDSA-AES256-GCM-SHA384")
               (":ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256:"
                ,tls-1.2 "ECDHE-ECDSA-AES128-GCM-SHA256")
               ("ECDHE-ECDSA-AES128-GCM-SHA256" ,tls-1.2 "ECDHE-ECDSA-AES128-GCM-SHA256")
               ("ALL" ,tls-1.2 "ECDHE-ECDSA-AES256-GCM-SHA384"))
        do (with-sides (client server
                        :client-context (let ((context (client-context :cipher-suites asked)))
                                          (when version ; at most
                                            (os::ssl-ctx-ctrl context 124 version 0))
                                          context))
             (shake-both client server)
             (is (equal cipher (os:session-cipher (side-ssl server))) "~S ~S" asked version))))

(test cipher-suites-that-are-none
  "A list without a suite for HTTP/2 is refused, with the name of its source."
  (dolist (asked '("nonsense" "AES128-SHA" "ADH-AES128-GCM-SHA256" "ECDHE-ECDSA-AES128-SHA"
                   "eNULL" "TLS_AES_999_GCM_SHA1" "TLS_AES_128_GCM_SHA256:TLS_NULL"))
    (is (search "the setting has "
                (handler-case (progn (os:free-tls-context
                                      (os:make-tls-context :client :none :cipher-suites asked
                                                                         :cipher-source
                                                                         "the setting"))
                                     "")
                  (os:tls-error (error) (princ-to-string error))))
        "~S" asked))
  (is (null (os::openssl-failure)) "the queue is empty afterwards"))

(defun in-groups (context list)
  "CONTEXT, which agrees only on the groups in LIST; on all groups if OpenSSL does not know LIST."
  (os::use-groups context list)
  context)

(test groups-of-thousands-of-bits-are-not-agreed-on
  "One handshake with a finite-field group of 8,192 bits takes an end 150 ms: no client or server
can make our end use it."
  (dolist (groups '("P-256" "P-384" "P-521" "X25519"))
    (with-sides (client server :client-context (in-groups (client-context) groups))
      (is (equal '(:done :done) (multiple-value-list (shake-both client server))) groups))
    (with-sides (client server :server-context (in-groups (server-context) groups))
      (is (equal '(:done :done) (multiple-value-list (shake-both client server))) groups)))
  (let ((context (os:make-tls-context :client :none)))
    (unwind-protect
         (dolist (groups '("ffdhe2048" "ffdhe8192"))
           (when (os::use-groups context groups) ; OpenSSL before 3 has no such groups
             (with-sides (client server :client-context (in-groups (client-context) groups))
               (is (stringp (nth-value 1 (shake-both client server))) groups))
             (with-sides (client server :server-context (in-groups (server-context) groups))
               (is (stringp (nth-value 1 (shake-both client server))) groups))))
      (os:free-tls-context context))))

(test tls-data
  (with-sides (client server)
    (shake-both client server)
    (let ((octets (make-octets 60000)))
      (dotimes (i 60000) (setf (aref octets i) (mod (* i i) 251)))
      (is-true (encrypt client octets))
      (is (< 60000 (carry client server) 60500) "four records")
      (is (equalp octets (decrypted server))))
    ;; a record that comes in two pieces
    (encrypt server (ascii-octets "hello"))
    (let* ((area (side-area client))
           (count (os:drain-area (side-area server)))
           (record (subseq (os:tls-area-octets (side-area server)) 0 count)))
      (replace (os:tls-area-octets area) record :end2 10)
      (os:feed-area area 10)
      (multiple-value-bind (octets outcome) (decrypted client)
        (is (equalp (octets-of) octets))
        (is (eq :more outcome)))
      (replace (os:tls-area-octets area) record :start2 10)
      (os:feed-area area (- count 10))
      (is (equalp (ascii-octets "hello") (decrypted client))))))

(test tls-key-update
  (with-sides (client server)
    (shake-both client server)
    (decrypted client)
    (dotimes (i 3)
      (os:update-keys (side-ssl client))
      (encrypt client (ascii-octets "new keys"))
      (carry client server)
      (is (equalp (ascii-octets "new keys") (decrypted server)))
      ;; the answer goes out before the server's next data
      (encrypt server (ascii-octets "both ways"))
      (carry server client)
      (is (equalp (ascii-octets "both ways") (decrypted client))))))

(test tls-end
  (with-sides (client server)
    (shake-both client server)
    (encrypt client (ascii-octets "last"))
    (os:end-session-output (side-ssl client))
    (carry client server)
    (multiple-value-bind (octets outcome) (decrypted server)
      (is (equalp (ascii-octets "last") octets))
      (is (eq :ended outcome)))))

(test tls-damage
  (with-sides (client server)
    (shake-both client server)
    (decrypted client)
    (encrypt client (ascii-octets "to be damaged"))
    (let ((count (os:drain-area (side-area client)))
          (area (side-area server)))
      (replace (os:tls-area-octets area) (os:tls-area-octets (side-area client)) :end2 count)
      (setf (aref (os:tls-area-octets area) (1- count))
            (logxor 1 (aref (os:tls-area-octets area) (1- count))))
      (os:feed-area area count)
      (is (eq :failed (nth-value 1 (decrypted server))))
      (is (search "bad record mac" (os:session-failure (side-ssl server))))
      (os:drop-unread area)
      (is (plusp (carry server client)) "an alert"))))

(defun handshake-failures (&rest arguments)
  "The texts of the failures, or the results, of a handshake at the client and at the server."
  (destructuring-bind (&key (client-context (client-context)) (server-context (server-context))
                         (name "localhost"))
      arguments
    (with-sides (client server :client-context client-context :server-context server-context
                               :name name)
      (multiple-value-list (shake-both client server)))))

(test tls-verification
  (loop for (name at-client) in '(("elsewhere.example" "hostname mismatch")
                                  ("127.0.0.2" "IP address mismatch"))
        do (destructuring-bind (client server) (handshake-failures :name name)
             (is (equal (format nil "certificate verify failed: ~A" at-client) client))
             ;; what comes before that depends on the version of OpenSSL
             (is (search "alert bad certificate" server))))
  (is (equal '(:done :done) (handshake-failures :name "127.0.0.1")))
  (is (equal '(:done :done) (handshake-failures :name "::1")))
  (is (equal '(:done :done) (handshake-failures :server-context (server-context
                                                                 :certificate "chain"))))
  (is (search "certificate has expired"
              (first (handshake-failures :server-context (server-context
                                                          :certificate "expired")))))
  (is (search "certificate verify failed: self"
              (first (handshake-failures :server-context (server-context
                                                          :certificate "stranger")))))
  (is (equal '(:done :done)
             (handshake-failures :client-context (client-context :verify :none)
                                 :server-context (server-context :certificate "stranger")))))

(defun client-context-with (certificate)
  (let ((context (client-context)))
    (os:add-certificate-chain context (certificate-text (format nil "~A.pem" certificate)) "")
    (os:add-private-key context (certificate-text (format nil "~A.key" certificate)) "" nil)
    context))

(test tls-client-certificates
  (flet ((at-server (verify client)
           (second (handshake-failures :server-context (server-context :verify verify)
                                       :client-context (if client
                                                           (client-context-with client)
                                                           (client-context))))))
    (is (eq :done (at-server :require "client")))
    (is (eq :done (at-server :request "client")))
    (is (eq :done (at-server :request nil)))
    (is (equal "peer did not return a certificate" (at-server :require nil)))
    (is (search "certificate verify failed: self" (at-server :require "stranger")))
    (is (search "certificate verify failed: self" (at-server :request "stranger")))
    (is (search "has expired" (at-server :require "expired")))))

(test tls-without-alpn
  (let ((context (client-context)))
    (os::ssl-ctx-set-alpn-protos context 0 0)
    (is (equal '("tlsv1 alert no application protocol" "callback failed")
               (handshake-failures :client-context context))))
  ;; another protocol
  (let ((context (client-context))
        (names (octets-of 8 104 116 116 112 47 49 46 49)))
    (sb-sys:with-pinned-objects (names)
      (os::ssl-ctx-set-alpn-protos context (sb-sys:sap-int (sb-sys:vector-sap names)) 9))
    (is (equal '("tlsv1 alert no application protocol" "no application protocol")
               (handshake-failures :client-context context)))))

(test tls-versions
  ;; SSL_CTX_set_max_proto_version
  (flet ((limited (version)
           (let ((context (client-context)))
             (os::ssl-ctx-ctrl context 124 version 0)
             context)))
    (is (equal '(:done :done) (handshake-failures :client-context (limited #x0303))))
    (let ((failures (handshake-failures :client-context (limited #x0302))))
      (is (every #'stringp failures) "TLS 1.1 is refused, not ~S" failures))))

(test tls-resumption
  (let ((client-context (client-context))
        (server-context (server-context))
        (ticket nil))
    (unwind-protect
         (dotimes (i 3)
           (call-with-sides
            (lambda (client server)
              (shake-both client server)
              (is (eq (plusp i) (os:session-resumed-p (side-ssl client))))
              (is (eq (plusp i) (os:session-resumed-p (side-ssl server))))
              (encrypt server (ascii-octets "x"))
              (carry server client)
              (decrypted client)
              (when ticket (os:free-session-ticket ticket))
              (setf ticket (os:session-ticket (side-ssl client)))
              (is-true ticket))
            client-context server-context (list :name "localhost" :resumed ticket)))
      (when ticket (os:free-session-ticket ticket))
      (os:free-tls-context client-context)
      (os:free-tls-context server-context))))

(test tls-noise
  ;; whatever comes instead of a handshake, the session fails with a text
  (let* ((seed (random 1000000))
         (state (sb-ext:seed-random-state seed)))
    (dotimes (i 50)
      (with-sides (client server)
        (let* ((area (side-area server)) (count (1+ (random 2000 state))))
          (dotimes (j count) (setf (aref (os:tls-area-octets area) j) (random 256 state)))
          (os:feed-area area count)
          (let ((outcome (shake server)))
            (is (or (eq outcome :more) (stringp outcome)) "seed ~D: ~S" seed outcome))
          (os:empty-area area))))))

(test sessions-end-with-their-certificates
  "A session is still valid in the last second of its time-out; a certificate is not."
  (loop for (end begin timeout) in '((1000 500 7200) (1000 500 400) (1000 999 7200) (1000 1000 7200)
                                     (1000 2000 7200) (501 500 7200) (502 500 7200))
        do (multiple-value-bind (new-begin new-timeout) (os::session-span end begin timeout)
             (is (plusp new-timeout))
             (is (<= new-timeout timeout))
             (is (< (+ new-begin new-timeout) end))
             (is (<= new-begin begin))
             ;; no less than that
             (is (= (+ new-begin new-timeout) (min (1- end) (+ begin timeout)))))))
