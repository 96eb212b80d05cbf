;;;; Services whose handler is one function, and calls of methods without generated code.

(in-package #:clgrpc.tests.server)

(defun call-with-generic (function service &rest services)
  (call-with-log
   '()
   (lambda ()
     (with-started (server (grpc:start-server (cons service services)) :drain 5)
       (grpc:with-channel (channel (grpc:server-address server))
         (funcall function channel server))))))

(defun echo-raw (method stream call)
  "Send each message back, after the path of METHOD."
  (grpc:send call (grpc:raw-message (string-octets (grpc:rpc-method-path method))))
  (grpc:do-messages (message stream) (grpc:send call message)))

(defun raw-text (message)
  (octets-string (grpc:raw-message-octets message)))

(test unknown-methods-have-a-handler
  "A method of no service of the server goes to the service that takes all; the others keep theirs."
  (call-with-generic
   (lambda (channel server)
     (is (= 42 (number-of (ask channel (note 21)))) "known methods are served as before")
     (let ((call (grpc:invoke channel (grpc:generic-method "a.B/C" :kind :bidi)
                              (list (grpc:raw-message (string-octets "x"))
                                    (grpc:raw-message (string-octets "")))
                              :timeout 20))
           (said '()))
       (grpc:do-messages (message call) (push (raw-text message) said))
       (is (equal '("" "x" "/a.B/C") said)))
     (register-lines)
     (with-raw-client (peer (grpc:server-address server))
       (let ((exchange (ask-raw peer "/a.B/C" :content-type "application/grpc+lab-lines"
                                              :data (framed (octets-of)))))
         (is (eq :unimplemented (status-of exchange)))
         (is (equal "/a.B/C has no messages in lab-lines"
                    (field-of "grpc-message" (exchange-headers exchange))))))
     (signals grpc:unimplemented
       (grpc:invoke channel (grpc:generic-method "lab.Bench/Watch")
                    (grpc:raw-message (octets-of)) :timeout 20)))
   (grpc:make-generic-service #'echo-raw)
   (make-probe :ask (handling (request)
                      (note (* 2 (number-of request)))))))

(test generic-methods-are-called-and-served
  "A service with methods of its own, raw or typed; the handler of a unary one gets its request and
returns the answer."
  (call-with-generic
   (fn (channel _server)
     (let ((ask (grpc:generic-method "a.B/Ask" :request-type "lab.Note" :response-type "lab.Note")))
       (is (= 2 (number-of (grpc:invoke channel ask (note 1) :timeout 20)))))
     (let ((raw (grpc:generic-method "a.B/Ask")))
       (is (equalp (grpc:serialize (note 4))
                   (grpc:raw-message-octets
                    (grpc:invoke channel raw (grpc:raw-message (grpc:serialize (note 2)))
                                 :timeout 20))))
       (signals misuse (grpc:invoke channel raw (note 1) :timeout 20)))
     (signals grpc:unimplemented
       (grpc:invoke channel (grpc:generic-method "a.B/Other") (grpc:raw-message (octets-of))
                    :timeout 20)))
   (grpc:make-generic-service
    (fn (method request _call)
      (assert (string= "Ask" (grpc:rpc-method-name method)))
      (note (* 2 (number-of request))))
    :methods (list (grpc:generic-method "a.B/Ask" :request-type 'lab:note
                                                  :response-type 'lab:note)))))

(test raw-messages-have-the-limits-of-others
  (call-with-generic
   (fn (channel _server)
     (let ((method (grpc:generic-method "a.B/C" :kind :bidi)))
       (signals grpc:resource-exhausted
         (grpc:do-messages (message (grpc:invoke channel method
                                                 (list (grpc:raw-message (make-octets 5000000)))
                                                 :timeout 20))))
       (let ((octets (make-octets 300000)))
         (setf (aref octets 299999) 7)
         (dolist (compression '(nil :gzip))
           (let ((call (grpc:invoke channel method (list (grpc:raw-message octets)) :timeout 20
                                    :compression compression)))
             (grpc:receive call)
             (is (equalp octets (grpc:raw-message-octets (grpc:receive call)))))))))
   (grpc:make-generic-service #'echo-raw)))

(test generic-misuse
  (signals misuse (grpc:generic-method "nothing"))
  (signals misuse (grpc:generic-method "a.B/"))
  (signals misuse (grpc:generic-method "a.B/C" :kind :both))
  (signals misuse (grpc:generic-method "a.B/C" :request-type "no.such.Type"))
  (let ((service (grpc:make-generic-service #'echo-raw)))
    (with-signalled (error misuse (grpc:start-server
                                   (list service (grpc:make-generic-service #'echo-raw))))
      (is (search "Two of the services handle methods" (princ-to-string error))))))

;;; Codecs

(defun register-lines ()
  "Register the codec \"lab-lines\" for lists of strings, one a line. Of a type of ours, a Note, the
first line is its text. \"broken\" is not a message, and \"nothing\" is nil."
  (grpc:register-codec
   "lab-lines"
   :serialize (lambda (message type)
                (string-octets (if (eq type 'lab:note)
                                   (format nil "~A~%" (lab:note-text message))
                                   (format nil "~{~A~%~}" message))))
   :deserialize (lambda (octets type)
                  (let ((lines (uiop:split-string (string-right-trim '(#\Newline)
                                                                     (octets-string octets))
                                                  :separator '(#\Newline))))
                    (cond ((equal '("broken") lines) (error "broken ~S" type))
                          ((equal '("nothing") lines) nil)
                          ((eq type 'lab:note) (lab:make-note :text (first lines)))
                          (t lines))))))

(test methods-with-codecs-are-called-and-served
  "An untyped service with a method of each kind; its messages are lists. A message that cannot be
decoded ends its call only."
  (register-lines)
  (flet ((coded (name kind) (grpc:generic-method name :kind kind :codec "lab-lines")))
    (let ((methods (list (coded "a.B/Ask" :unary) (coded "a.B/Watch" :server-streaming)
                         (coded "a.B/Collect" :client-streaming) (coded "a.B/Chat" :bidi)
                         (coded "a.B/Later" :unary))))
      (call-with-generic
       (lambda (channel server)
         (flet ((call (index request) (grpc:invoke channel (nth index methods) request
                                                   :timeout +patience+)))
           (is (equal '("a" "b" "Ask") (call 0 '("a" "b"))))
           (is (equal '("a" "Later") (call 4 '("a"))))
           (let ((long (loop repeat 5000 collect "a line")))
             (is (equal (append long '("Ask")) (call 0 long))))
           (let ((said '()))
             (grpc:do-messages (message (call 1 '("a"))) (push message said))
             (is (equal '(("a") ("a") ("a")) said)))
           (is (equal '("2") (call 2 (list '("a") '("b")))))
           (let ((said '()))
             (grpc:do-messages (message (call 3 (list '("a") '("b" "c")))) (push message said))
             (is (equal '(("b" "c") ("a")) said)))
           (dolist (bad '(("broken") ("nothing")))
             (is (typep (caught (call 0 bad)) 'grpc:internal))
             (is (typep (caught (grpc:do-messages (message (call 3 (list '("a") bad)))
                                  (declare (ignore message))))
                        'grpc:internal)))
           (is (typep (caught (call 0 '("answer-broken"))) 'grpc:internal))
           (signals error (call 0 5))
           (is (equal '("a" "Ask") (call 0 '("a"))))
           ;; within the image there is none
           (let ((within (grpc:server-channel server)))
             (signals misuse (grpc:invoke within (first methods) '("a")))
             (grpc:close-channel within))))
       (grpc:make-generic-service
        (lambda (method request call)
          (let ((name (grpc:rpc-method-name method)))
            (cond ((string= "Watch" name) (dotimes (i 3) (grpc:send call request)))
                  ((string= "Collect" name)
                   (list (princ-to-string (loop while (grpc:receive request) count t))))
                  ((string= "Chat" name)
                   (grpc:do-messages (message request) (grpc:send call message)))
                  ((string= "Later" name)
                   (grpc:after call 0 (lambda () (grpc:reply call (append request (list name)))))
                   call)
                  ((equal '("answer-broken") request) '("broken"))
                  (t (append request (list name))))))
        :methods methods)))))

(test channels-with-a-codec
  "Stubs of a typed service use a channel with a codec: the server decodes requests by it, for
handlers that do not know it, with an interceptor around them."
  (register-lines)
  (with-probe (channel :server server
                       :options (list :interceptors
                                      (list (lambda (call request next)
                                              (let ((value (funcall next request)))
                                                (assert (or (eq value call)
                                                            (typep value 'lab:note)))
                                                value)))))
      (:ask (handling (note)
              (lab:make-note :text (format nil "~A!" (lab:note-text note)) :number 5)))
    (grpc:with-channel (lines (grpc:server-address server) :codec "lab-lines")
      (flet ((answer (channel text)
               (let ((reply (ask channel (lab:make-note :text text :number 1))))
                 (list (lab:note-text reply) (lab:note-number reply)))))
        (is (equal '("a!" 0) (answer lines "a")))
        (is (equal '("a!" 5) (answer channel "a")))
        (is (equal '("b!" 0) (answer lines "b")))
        (is (typep (caught (answer lines "broken")) 'grpc:internal))
        (signals error (ask lines '("a")))
        (let ((note (lab:make-note :text "c")))
          (is (equal "c!" (lab:note-text (grpc:await (grpc:call-async #'lab.bench:ask lines
                                                                      note))))))))
    (signals misuse (grpc:make-channel "127.0.0.1:1" :codec "lab-other"))))

(test a-codec-that-is-registered-later
  "The connection has seen its name before, in a header block that is repeated: after the
registration the name is known there."
  (with-raw-calls (peer)
      (:ask (handling (note) note))
    (let ((name (format nil "lab-later-~D" (random (expt 10 9))))) ; it stays registered
      (flet ((answer ()
               (ask-raw peer "/lab.Bench/Ask"
                        :content-type (format nil "application/grpc+~A" name)
                        :data (framed (string-octets "a")))))
        (loop repeat 3
              do (is (equal "415" (field-of ":status" (exchange-headers (answer))))))
        (grpc:register-codec name
                             :serialize (fn (message _type) (string-octets message))
                             :deserialize (fn (octets _type) (octets-string octets)))
        (loop repeat 3 do (is (eq :ok (status-of (answer)))))))))

(test codecs-on-the-wire
  "The answer has the content type of the request; an unknown one is refused. A message that is
invalid, too long or cut short ends its call only."
  (register-lines)
  (with-raw-calls (peer :max-receive-octets 1000)
      (:ask (handling (note) note))
    (flet ((answer (data &key (type "application/grpc+lab-lines"))
             (ask-raw peer "/lab.Bench/Ask" :content-type type :data data))
           (lines (text) (framed (string-octets text))))
      (let ((exchange (answer (lines "a"))))
        (is (eq :ok (status-of exchange)))
        (is (equal "application/grpc+lab-lines"
                   (field-of "content-type" (exchange-headers exchange))))
        (is (equalp (framed (string-octets (format nil "a~%"))) (exchange-data-octets exchange))))
      (is (eq :ok (status-of (answer (lines "a") :type "Application/GRPC+Lab-Lines; charset=x"))))
      (is (equal "415" (field-of ":status" (exchange-headers
                                            (answer (lines "a") :type "application/grpc+lab")))))
      (is (eq :internal (status-of (answer (lines "broken")))))
      (is (eq :internal (status-of (answer (lines "nothing")))))
      (is (eq :internal (status-of (answer (framed (octets-of 255 254 253))))))
      (is (eq :resource-exhausted (status-of (answer (framed (make-octets 1001))))))
      (is (eq :internal (status-of (answer (subseq (lines "abc") 0 7)))))
      (is (eq :unimplemented (status-of (answer (octets-of)))) "the message is missing")
      (is (eq :unimplemented
              (status-of (ask-raw peer "/lab.Bench/None" :content-type "application/grpc+lab-lines"
                                                         :data (lines "a")))))
      (is (eq :ok (status-of (answer (lines "a")))))
      (is (eq :ok (status-of (answer (note-octets 1) :type "application/grpc")))))))
