;;;; Services whose handler is one function, and calls of methods that no code was made for.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(defun call-with-generic (function service &rest services)
  (call-with-log
   '()
   (lambda ()
     (let ((server (grpc:start-server (cons service services))))
       (unwind-protect (grpc:with-channel (channel (grpc:server-address server))
                         (funcall function channel server))
         (grpc:stop-server server :drain 5))))))

(defun echo-raw (method stream call)
  "Send each message back, behind the path of METHOD."
  (grpc:send call (grpc:raw-message (string-octets (grpc:rpc-method-path method))))
  (grpc:do-messages (message stream) (grpc:send call message)))

(defun raw-text (message)
  (octets-string (grpc:raw-message-octets message)))

(test unknown-methods-have-a-handler
  "What no service of the server has goes to the service that takes everything; the others stay."
  (call-with-generic
   (lambda (channel server)
     (declare (ignore server))
     (is (= 42 (number-of (ask channel (note 21)))) "known ones are served as before")
     (let ((call (grpc:invoke channel (grpc:generic-method "a.B/C" :kind :bidi)
                              (list (grpc:raw-message (string-octets "x"))
                                    (grpc:raw-message (string-octets "")))
                              :timeout 20))
           (said '()))
       (grpc:do-messages (message call) (push (raw-text message) said))
       (is (equal '("" "x" "/a.B/C") said)))
     (signals grpc:unimplemented
       (grpc:invoke channel (grpc:generic-method "lab.Bench/Watch")
                    (grpc:raw-message (octets-of)) :timeout 20)))
   (grpc:make-generic-service #'echo-raw)
   (make-probe :ask (lambda (request call)
                      (declare (ignore call))
                      (note (* 2 (number-of request)))))))

(test generic-methods-are-called-and-served
  "A service with methods of its own, raw or of a type; a unary one gets its request and answers with
what it returns."
  (call-with-generic
   (lambda (channel server)
     (declare (ignore server))
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
    (lambda (method request call)
      (declare (ignore call))
      (assert (string= "Ask" (grpc:rpc-method-name method)))
      (note (* 2 (number-of request))))
    :methods (list (grpc:generic-method "a.B/Ask" :request-type 'lab:note
                                                  :response-type 'lab:note)))))

(test raw-messages-have-the-limits-of-others
  (call-with-generic
   (lambda (channel server)
     (declare (ignore server))
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
    (signals misuse (grpc:start-server (list service (grpc:make-generic-service #'echo-raw))))))
