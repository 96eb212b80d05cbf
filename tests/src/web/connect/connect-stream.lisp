;;;; Connect's streams: envelopes in both directions, and the last envelope.

(in-package #:clgrpc.tests.web)

(defun enveloped (flag text)
  "TEXT in an envelope with FLAG, octets."
  (let ((octets (ascii-octets text)))
    (concatenate 'octets (list flag 0 0 (ash (length octets) -8) (logand 255 (length octets)))
                 octets)))

(defun stream-json (server path body version)
  "The text that curl gets for a POST of BODY, octets, to PATH, a stream in JSON."
  (with-octets-file (file body)
    (with-octets-file (answer (make-octets 0))
      (post server path "application/connect+json" file version "-o" (subseq answer 1))
      (map 'string #'code-char
           (remove-if-not (lambda (octet) (<= 32 octet 126))
                          (alexandria:read-file-into-byte-vector (subseq answer 1)))))))

(test streams-of-connect
  "A stream from the server and one to it; in both, the last envelope reports how the call ended."
  (with-web-probe (server) (:watch #'count-up :collect #'add-up)
    (dolist (version *versions*)
      (let ((text (stream-json server "/lab.Bench/Watch" (enveloped 0 "{\"number\":3}") version)))
        (is (search "{\"number\":\"1\"}" text))
        (is (search "{\"number\":\"2\"}" text))
        (is (uiop:string-suffix-p text "{}")))
      (let ((text (stream-json server "/lab.Bench/Collect"
                               (concatenate 'octets (enveloped 0 "{\"number\":3}")
                                            (enveloped 0 "{\"number\":4}"))
                               version)))
        (is (search "{\"number\":\"7\"}" text))
        (is (uiop:string-suffix-p text "{}"))))))

(test trailers-are-at-the-end-of-a-stream
  "Each name occurs once, with all of its values; octets are in Base64 without padding."
  (with-web-probe (server)
      (:watch (lambda (request call)
                (count-up request call)
                (setf (grpc:call-trailers call)
                      (list '("x-a" . "1") '("x-b" . "2") (cons (copy-seq "x-a") "3")
                            (cons "x-c-bin" (coerce '(1 2 3 4) 'octets))))))
    (dolist (version *versions*)
      (is (uiop:string-suffix-p
           (stream-json server "/lab.Bench/Watch" (enveloped 0 "{\"number\":1}") version)
           "{\"metadata\":{\"x-a\":[\"1\",\"3\"],\"x-b\":[\"2\"],\"x-c-bin\":[\"AQIDBA\"]}}")))))

(test streams-in-both-directions-need-http2
  "Over HTTP/1.1 they are refused with 505, over HTTP/2 they work."
  (with-web-probe (server)
      (:chat (lambda (stream call)
               (grpc:do-messages (message stream) (grpc:send call message))))
    (with-octets-file (file (enveloped 0 "{\"number\":3}"))
      (is (uiop:string-suffix-p (apply #'post server "/lab.Bench/Chat" "application/connect+json"
                                       file "--http1.1" *status*)
                                " 505")))
    (is (search "{\"number\":\"3\"}"
                (stream-json server "/lab.Bench/Chat" (enveloped 0 "{\"number\":3}")
                             "--http2-prior-knowledge")))))

(test envelopes-that-lie
  "An unknown flag, a message that is cut short, one that is too long, and compression that was not
announced: the call ends with an error in its last envelope."
  (with-web-probe (server :max-receive-octets 1000) (:collect #'add-up :watch #'count-up)
    (dolist (version *versions*)
      (flet ((refused (code body)
               (let ((text (stream-json server "/lab.Bench/Collect" body version)))
                 (is (search (format nil "\"code\":\"~A\"" code) text) "~S" text))))
        (refused "internal" (enveloped 8 "{}"))
        (refused "internal" (enveloped 2 "{}"))
        (refused "internal" (enveloped 1 "{}"))
        (refused "internal" (subseq (enveloped 0 "{\"number\":3}") 0 9))
        (refused "internal" (octets-of 0 0 0))
        (refused "resource_exhausted" (octets-of 0 255 255 255 255 1 2 3))
        (refused "invalid_argument" (enveloped 0 "{\"number\":")))
      (let ((text (stream-json server "/lab.Bench/Watch" (make-octets 0) version)))
        (is (search "\"code\":\"unimplemented\"" text) "~A" text)))))

(test a-long-stream-waits-for-its-peer
  "A handler that sends more than its peer takes waits, over HTTP/1.1 as over HTTP/2, and continues
when the peer takes it."
  (with-web-probe (server)
      (:watch (lambda (request call)
                (dotimes (i (number-of request))
                  (grpc:send call (lab:make-note :text (make-string 10000 :initial-element #\x))))))
    (dolist (version *versions*)
      (with-octets-file (file (enveloped 0 "{\"number\":500}"))
        ;; 500 of 5 octets and {"text":""}, and {} at the end
        (is (string= (format nil " ~D" (+ (* 500 (+ 5 10000 11)) 7))
                     (post server "/lab.Bench/Watch" "application/connect+json" file version
                           "-o" "/dev/null" "-w" " %{size_download}")))))))

(test callbacks-of-connect-wait-for-room
  "A callback gets the next message only while answers leave, even within one read: there is always
room for its answer."
  (let ((sent '()))
    (with-web-probe (server :execution :inline)
        (:chat (lambda (stream call)
                 (grpc:on-message stream
                                  (fn (_message)
                                    (push (grpc:try-send call (note 1 :body (make-octets 30000)))
                                          sent)))
                 (grpc:on-half-close stream (lambda () (grpc:finish call)))
                 call))
      (with-raw-client (peer (grpc:server-address server))
        (ask-raw peer "/lab.Bench/Chat"
                 :content-type "application/connect+json"
                 :data (apply #'concatenate 'octets
                              (make-list 20 :initial-element (enveloped 0 "{}")))))
      (is (equal (make-list 20 :initial-element t) sent)))))

(defun paused-p (server)
  "True if the connection of SERVER, over HTTP/1.1, does not read a body at present."
  (let ((http1 (and (server-links server)
                    (server::server-link-http1 (first (server-links server))))))
    (and http1 (clgrpc.exchange::state-paused http1))))

(defun call-with-unread-stream (function count size)
  "Send COUNT messages of SIZE characters over HTTP/1.1 to a server. Its handler reads only once
FUNCTION, called with the server when that reads no more, has returned. Check that all arrive."
  (let* ((go (make-signal))
         (letter (enveloped 0 (format nil "{\"text\":\"~A\"}"
                                      (make-string size :initial-element #\x))))
         (body (apply #'concatenate 'octets (make-list count :initial-element letter))))
    (with-web-probe (server :stream-window-octets 65535)
        (:collect (handling (stream)
                    (await-signal go)
                    (let ((count 0))
                      (grpc:do-messages (message stream) message (incf count))
                      (note count))))
      (let ((client (in-thread (stream-json server "/lab.Bench/Collect" body "--http1.1"))))
        (eventually (paused-p server))
        (funcall function server)
        (signal-it go)
        (is (search (format nil "{\"number\":\"~D\"}" count)
                    (sb-thread:join-thread client :timeout +patience+ :default "")))))))

(test a-stream-that-nobody-reads-waits
  "Over HTTP/1.1 the server reads no more of it than a window until its handler reads; then all
arrives."
  (call-with-unread-stream (lambda (server) (is (< 65535 (held-octets server) 400000)))
                           2000 1000))

(test a-stream-that-ends-as-reading-stops
  "Over HTTP/1.1 the last message of a stream fills the window: the stream's end arrives as well."
  (call-with-unread-stream #'identity 3 30000))

(test a-client-that-leaves-cancels-its-call
  "The handler is notified, over both versions."
  (dolist (version *versions*)
    (let ((gone (make-signal)))
      (with-web-probe (server)
          (:watch (fn (_request call)
                    (grpc:on-cancel call (lambda () (signal-it gone)))
                    (grpc:send call (note 1))
                    call))
        (with-octets-file (file (enveloped 0 "{}"))
          (post server "/lab.Bench/Watch" "application/connect+json" file version
                "--max-time" "0.3"))
        (is (await-signal gone))))))

(defun last-answer-p (link)
  "True if LINK, which speaks HTTP/1.1, ends after the answer under way, as in a drain."
  (clgrpc.exchange::state-last (server::server-link-http1 link)))

(test a-server-that-stops-lets-streams-end
  "A stream over HTTP/1.1 that has begun gets the time of the drain, as over HTTP/2."
  (let* ((entered (make-signal)) (go-on (make-signal))
         (server (clgrpc.tests.server:start-probe
                  (list :watch (fn (_request call)
                                 (grpc:send call (note 1))
                                 (signal-it entered)
                                 (await-signal go-on)
                                 (grpc:send call (note 2))))
                  :protocols '(:grpc :connect))))
    (with-plain-socket (socket (grpc:server-address server))
      (let ((body (map 'string #'code-char (enveloped 0 "{}"))))
        (say-text socket (wire-text (format nil "POST /lab.Bench/Watch HTTP/1.1|Host: a|~
                                                 Content-Type: application/connect+json|~
                                                 Content-Length: ~D||" (length body))))
        (say-text socket body))
      (await-signal entered)
      (let ((stopping (in-thread (grpc:stop-server server :drain 20))))
        (eventually (every #'last-answer-p (server-links server)))
        (signal-it go-on)
        (let ((text (hear-all socket)))
          (is (search "{\"number\":\"2\"}" text))
          (is (null (search "error" text)) "~S" text))
        (is (eq t (sb-thread:join-thread stopping :timeout +patience+ :default nil)))))))

(test octets-of-streams-are-counted
  "The octets of each message count, without its envelope."
  (let ((metrics (grpc:make-metrics)) (texts '("{\"number\":1}" "{\"number\":20}")))
    (with-web-probe (server :observer metrics) (:collect #'add-up)
      (dolist (version *versions*)
        (is (search "\"21\"" (stream-json server "/lab.Bench/Collect"
                                          (apply #'concatenate 'octets
                                                 (mapcar (lambda (text) (enveloped 0 text)) texts))
                                          version))))
      (eventually (eql (* 2 (reduce #'+ texts :key #'length)) (message-octets metrics "rcvd"))))))
