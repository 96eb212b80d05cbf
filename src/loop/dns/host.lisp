;;;; The addresses of a host, of both families. Both families are looked up at once. Once one answer
;;;; has addresses, the other one may take one more second, so that a server that drops the
;;;; questions for one family does not delay the other family.
;;;;
;;;; Within a family the order is the answer's. IPv6 addresses come before IPv4 ones if the host has
;;;; a route to IPv6 (RFC 6724 section 6, rules 1 and 6, without the finer ones), else after them.

(in-package #:clgrpc.dns)

(defconstant +grace-ns+ +ns-per-second+
  "The time in nanoseconds for which the addresses of one family wait for those of the other
family.")

(defun octets-address (octets port)
  "Return the address in the kernel's form for OCTETS, 4 or 16, and PORT."
  (let* ((inet6 (= 16 (length octets)))
         (address (os:make-address (if inet6 "::" "0.0.0.0") port)))
    (replace address octets :start1 (if inet6 8 4))))

(defun order-families (loop inet inet6)
  "Return the addresses INET and INET6, in the order in which to try them."
  (if (and inet6 (loop:route-p loop (first inet6)))
      (append inet6 inet)
      (append inet inet6)))

(defun worse (one other)
  "ONE and OTHER are answers without addresses, each a list of outcome and text. Return the answer
that explains the failure better: an unknown answer has priority over :no-such-name, and
:no-such-name over :no-data."
  (flet ((rank (answer)
           (or (position (first answer) '(:no-data :no-such-name)) 2)))
    (if (< (rank one) (rank other)) other one)))

(defun lookup-host (loop servers name port timeout-ns function)
  "Ask SERVERS, addresses in the kernel's form, for the addresses of NAME, octets, each with PORT,
within TIMEOUT-NS nanoseconds. Then (FUNCTION addresses outcome failure) is called on LOOP, exactly
once. If addresses were found, OUTCOME is :found; otherwise FAILURE is the reason, as text. Call
LOOKUP-HOST on LOOP; FUNCTION may be called before LOOKUP-HOST returns."
  (declare (type function function))
  (let ((answers '()) (queries '()))    ; alists by type
    (labels ((addresses (type)
               (destructuring-bind (outcome data) (cdr (assoc type answers))
                 (when (eq :found outcome)
                   (mapcar (lambda (octets) (octets-address octets port)) data))))
             (conclude ()
               (let ((found (order-families loop (addresses +a+) (addresses +aaaa+))))
                 (if found
                     (funcall function found :found nil)
                     (destructuring-bind (outcome text)
                         (worse (cdr (assoc +a+ answers)) (cdr (assoc +aaaa+ answers)))
                       (funcall function '() outcome
                                (if (eq :no-data outcome)
                                    (format nil "~A has no address" (name-text name))
                                    text))))))
             (receive (type outcome data)
               (push (list type outcome data) answers)
               (let ((other (if (= type +a+) +aaaa+ +a+)))
                 (cond ((assoc other answers) (conclude))
                       ((eq :found outcome)
                        (let ((query (cdr (assoc other queries))))
                          (when query (give-up query +grace-ns+)))))))
             (inquire (type)
               (push (cons type (ask loop servers name type timeout-ns
                                     (lambda (outcome data) (receive type outcome data))))
                     queries)))
      (inquire +a+)
      (inquire +aaaa+)
      nil)))
