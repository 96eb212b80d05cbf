;;;; Connect's unary calls.

(in-package #:clgrpc.tests.web)

(test a-unary-call-in-json
  "A POST of JSON calls the same handler as gRPC, and counts as a call."
  (with-web-probe (server) (:ask #'double)
    (dolist (version *versions*)
      (is (string= "{\"number\":\"42\"} 200"
                   (apply #'post server "/lab.Bench/Ask" "application/json" "{\"number\":21}"
                          version *status*))))
    (eventually (= 2 (getf (grpc:server-statistics server) :calls)))))

(test octets-of-unary-answers-are-counted
  "The octets of the message count, in JSON as in Protocol Buffers."
  (let ((metrics (grpc:make-metrics)))
    (with-web-probe (server :observer metrics) (:ask #'double)
      (with-octets-file (file (grpc:serialize (note 1)))
        (post server "/lab.Bench/Ask" "application/json" "{\"number\":21}")
        (post server "/lab.Bench/Ask" "application/proto" file))
      (eventually (eql (+ (length "{\"number\":\"42\"}") 2)
                       (message-octets metrics "sent")))
      (is (eql (+ (length "{\"number\":21}") 2) (message-octets metrics "rcvd"))))))

(test a-call-is-of-the-first-version-of-connect
  (with-web-probe (server) (:ask #'double)
    (loop for (version shown) in '((nil nil) ("1" nil) ("2" "\"2\"") ("" "\"\"")
                                   ("01234567890123456789" "\"01234567890123456789\"")
                                   ("012345678901234567890" "\"01234567890123456789\"…"))
          do (is (equal (if shown
                            (list "invalid_argument"
                                  (format nil "the version of Connect is 1, not ~A" shown))
                            '(nil nil))
                        (let ((answer (parse-json
                                       (apply #'post server "/lab.Bench/Ask" "application/json"
                                              "{\"number\":21}"
                                              (and version
                                                   (list "-H"
                                                         (if (string= "" version)
                                                             "connect-protocol-version;"
                                                             (format nil
                                                                     "connect-protocol-version: ~A"
                                                                     version))))))))
                          (loop for name in '("code" "message")
                                collect (cdr (assoc name answer :test #'string=)))))
                 "~S" version))))

(test a-unary-call-in-protobuf
  "The body is the message, without an envelope."
  (with-web-probe (server) (:ask #'double)
    (with-octets-file (file (grpc:serialize (note 1)))
      (dolist (version *versions*)
        (is (string= (format nil "~C~C" (code-char 8) (code-char 2))
                     (post server "/lab.Bench/Ask" "application/proto" file version)))))))

(test an-answer-names-its-encoding-if-it-is-compressed
  "An answer that is too short for compression names no encoding, though its call compresses."
  (with-web-probe (server)
      (:ask (lambda (request call)
              (setf (grpc:call-compression call) :gzip)
              (note 1 :body (number-of request))))
    (dolist (version *versions*)
      (flet ((ask (octets)
               (apply #'post server "/lab.Bench/Ask" "application/json"
                      (format nil "{\"number\":~D}" octets) version "-i" "--compressed" *status*)))
        (let ((short (ask 3)) (long (ask 5000)))
          (is (search "AAAA" short))
          (is (null (search "content-encoding" short)))
          (is (search "content-encoding: gzip" long))
          (is (uiop:string-suffix-p long " 200")))))))

(test an-error-is-json
  "Code, message and details, with the HTTP status of the code."
  (with-web-probe (server) (:ask #'refuse)
    (dolist (version *versions*)
      (is (string= (concatenate 'string "{\"code\":\"not_found\",\"message\":\"no such note\","
                                "\"details\":[{\"type\":\"lab.Note\",\"value\":\"CAc\"}]} 404")
                   (apply #'post server "/lab.Bench/Ask" "application/json" "{}"
                          version *status*))))))

(test each-status-has-its-code
  "The codes are those of Connect's table, with their HTTP statuses."
  (let ((table '((:cancelled "canceled" 499) (:unknown "unknown" 500)
                 (:invalid-argument "invalid_argument" 400)
                 (:deadline-exceeded "deadline_exceeded" 504) (:not-found "not_found" 404)
                 (:already-exists "already_exists" 409) (:permission-denied "permission_denied" 403)
                 (:resource-exhausted "resource_exhausted" 429)
                 (:failed-precondition "failed_precondition" 400) (:aborted "aborted" 409)
                 (:out-of-range "out_of_range" 400) (:unimplemented "unimplemented" 501)
                 (:internal "internal" 500) (:unavailable "unavailable" 503)
                 (:data-loss "data_loss" 500) (:unauthenticated "unauthenticated" 401))))
    (with-web-probe (server)
        (:ask (handling (request)
                (grpc:fail (first (nth (number-of request) table)) "")))
      (loop for (nil code http-status) in table
            for number from 0
            do (is (string= (format nil "{\"code\":~S} ~D" code http-status)
                            (apply #'post server "/lab.Bench/Ask" "application/json"
                                   (format nil "{\"number\":~D}" number) *status*)))))))

(test trailers-that-are-too-many-for-a-head
  "Trailers are headers, and so have the headers' limit: a call that has more ends with an error."
  (with-web-probe (server :max-header-list-octets 8192)
      (:ask (lambda (request call)
              (setf (grpc:call-trailers call)
                    (loop repeat (number-of request)
                          collect (cons "x-more" (make-string 1000 :initial-element #\x))))
              request))
    (dolist (version *versions*)
      (flet ((ask (number)
               (apply #'post server "/lab.Bench/Ask" "application/json"
                      (format nil "{\"number\":~D}" number) version "-i" *status*)))
        (let ((text (ask 5)))
          (is (search "trailer-x-more: xxx" text))
          (is (uiop:string-suffix-p text " 200")))
        (let ((text (ask 9)))
          (is (null (search "trailer-x-more" text)))
          (is (search "the call's trailers are larger than its client accepts" text))
          (is (uiop:string-suffix-p text " 429")))))))

(test bodies-that-are-no-message
  "Bad JSON, bad Protocol Buffers, a bad timeout and a wrong version reach no handler."
  (let ((calls 0))
    (with-web-probe (server)
        (:ask (handling (request)
                (incf calls)
                request))
      (dolist (version *versions*)
        (flet ((refused (status type body &rest arguments)
                 (let ((text (apply #'post server "/lab.Bench/Ask" type body version
                                    (append arguments *status*))))
                   (is (uiop:string-suffix-p text (format nil " ~D" status)) "~A" text))))
          (refused 400 "application/json" "{")
          (refused 400 "application/json" "{\"number\":[]}")
          (is (search "the message cannot be parsed: number: "
                      (post server "/lab.Bench/Ask" "application/json" "{\"number\":[]}")))
          (is (null (search "parsed: :" (post server "/lab.Bench/Ask" "application/json" "{")))
              "the text names no field if none is wrong")
          (refused 400 "application/proto" "abc")
          (refused 400 "application/json" "{}" "-H" "connect-timeout-ms: 1x")
          (refused 400 "application/json" "{}" "-H" "connect-timeout-ms: 10000000000")
          (refused 504 "application/json" "{}" "-H" "connect-timeout-ms: 0")
          (refused 400 "application/json" "{}" "-H" "connect-protocol-version: 2")
          (refused 501 "application/json" "{}" "-H" "content-encoding: br")
          (refused 415 "application/xml" "{}")
          ;; what a page may send without a preflight
          (refused 415 "text/plain" "{}")
          (refused 415 "application/x-www-form-urlencoded" "{}")
          (refused 415 "application/connect+json" "{}")))
      (is (zerop calls))
      (post server "/lab.Bench/Ask" "application/json" "{}" "-H" "connect-timeout-ms: 9999999999")
      (is (= 1 calls)))))

(test wrong-calls-count-until-they-are-rejected
  "A wrong request is answered once its body has come. Until then it is one of the calls, of which
one peer cannot have all."
  (with-web-probe (server :max-calls 32) (:ask #'double)
    (with-raw-client (peer (grpc:server-address server))
      (let ((wrong (loop repeat 40
                         collect (send-request peer "/lab.Bench/Ask" :end nil
                                               :content-type "application/proto"
                                               :fields '(("connect-timeout-ms" . "x"))))))
        (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1)) ; comes after those
        (is (<= 24 (count-if-not #'exchange-ended wrong) 31))))))
