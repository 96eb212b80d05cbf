;;;; The headers of a request on the wire.

(in-package #:clgrpc.tests.client)

(test request-on-the-wire
  "The fields of a request, in gRPC's order, and its message."
  (let ((seen nil))
    (with-answer (channel) (lambda (exchange)
                             (setf seen exchange)
                             (ok-response exchange (note-octets 2)))
      (is (= 2 (number-of (lab.bench:ask channel (note 1)
                                         :metadata `(("x-a" . "1") ("x-b-bin" . ,(octets-of 1)))))))
      (is (equal `((":method" . "POST") (":scheme" . "http") (":path" . "/lab.Bench/Ask")
                   (":authority" . ,(grpc:channel-target channel)) ("te" . "trailers")
                   ("content-type" . "application/grpc"))
                 (subseq (exchange-headers seen) 0 6)))
      (is (uiop:string-prefix-p "grpc-lisp-clgrpc/"
                                (field-of "user-agent" (exchange-headers seen))))
      (is (null (field-of "grpc-timeout" (exchange-headers seen))))
      (is (equal '(("x-a" . "1") ("x-b-bin" . "AQ")) (last (exchange-headers seen) 2)))
      (is (equalp (note-octets 1) (exchange-data-octets seen)))
      (lab.bench:ask channel (note 1) :timeout 2)
      (let ((timeout (status:parse-timeout (ascii-octets (field-of "grpc-timeout"
                                                                (exchange-headers seen))))))
        (is (< 1900000000 timeout 2000100000)))
      ;; right after the reserved headers
      (is (equal "grpc-timeout" (car (nth 4 (exchange-headers seen))))))))

;;; What requests say of their server and client

(defun call-with-authorities (function &rest channel-options)
  "Call FUNCTION with a channel to a server that answers with the header user-agent, and with a
function that returns the :authority of the last request."
  (let ((authority nil))
    (with-probe (channel :options (list :observer (grpc:make-observer
                                                   :request-begun
                                                   (fn (_call name) (setf authority name))))
                         :channel-options channel-options)
        (:ask (lambda (note call)
                (note (number-of note)
                      :text (cdr (assoc "user-agent" (grpc:call-metadata call)
                                        :test #'string=)))))
      (funcall function channel (lambda () authority)))))

(test the-authority-of-requests
  "The :authority is the target's host and port, unless the channel or the call sets another."
  (call-with-authorities
   (lambda (channel authority)
     (ask channel (note 1))
     (is (equal (grpc:channel-target channel) (funcall authority)))
     (ask channel (note 1) :authority "other.example:1")
     (is (equal "other.example:1" (funcall authority)))
     (ask channel (note 1))
     (is (equal (grpc:channel-target channel) (funcall authority)))))
  (call-with-authorities
   (lambda (channel authority)
     (ask channel (note 1))
     (is (equal "mesh.example" (funcall authority)))
     (ask channel (note 1) :authority "[::1]:5")
     (is (equal "[::1]:5" (funcall authority))))
   :authority "mesh.example"))

(test wrong-authorities-are-misuse
  (dolist (bad (list "" "a b" (format nil "a~Cb" #\Newline)
                     (format nil "~C.example" (code-char 252)) 5))
    (signals grpc:misuse (grpc:make-channel "127.0.0.1:80" :authority bad))
    (with-probe (channel) (:ask #'double)
      (signals grpc:misuse (ask channel (note 1) :authority bad)))))

(test the-user-agent
  "The application's name precedes the library's."
  (call-with-authorities
   (fn (channel _authority)
     (is (eql 0 (search "grpc-lisp-clgrpc/" (lab:note-text (ask channel (note 1))))))))
  (call-with-authorities
   (fn (channel _authority)
     (is (eql 0 (search "shop/1.2 grpc-lisp-clgrpc/" (lab:note-text (ask channel (note 1)))))))
   :user-agent "shop/1.2")
  (dolist (bad (list "" (format nil "a~Cb" #\Return) (string (code-char 252)) 5))
    (signals grpc:misuse (grpc:make-channel "127.0.0.1:80" :user-agent bad))))
