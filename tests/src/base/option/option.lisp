;;;; The options table, row by row: the objects that take an option, and its values.

(in-package #:clgrpc.tests.base)

(defparameter *makers*
  '((:connection make-options) (:server make-server-options) (:channel make-channel-options)
    (:inproc make-inproc-options) (:tracing make-tracing-options))
  "Kinds of objects that take options, and the functions that make them.")

(defun good-values (row)
  "Some values of ROW."
  (if (typep (option-row-default row) 'boolean)
      '(t nil)
      (list (option-row-minimum row) (option-row-default row) (option-row-maximum row))))

(defun bad-values (row)
  "Some values that ROW does not have."
  (list* "1" :yes
         (if (typep (option-row-default row) 'boolean)
             '(0 1)
             (list (1- (option-row-minimum row)) (1+ (option-row-maximum row)) nil t))))

(defun option-value (options row)
  (slot-value options (find-symbol (string (option-row-name row)) '#:clgrpc.option)))

(test each-row-takes-its-values-where-it-belongs
  (dolist (row (option-table))
    (let ((name (option-row-name row)))
      (loop for (taker make) in *makers*
            do (cond ((takes-option-p taker row)
                      (is (eql (option-row-default row) (option-value (funcall make) row)))
                      (dolist (value (good-values row))
                        (is (eql value (option-value (funcall make name value) row))))
                      (dolist (value (bad-values row))
                        (signals misuse (funcall make name value))))
                     (t (dolist (value (good-values row))
                          (signals misuse (funcall make name value)))))))))

(test bounds-are-decimals
  "The bound 0.1 is equal for each way to write a tenth, though the floats are three numbers."
  (dolist (row (option-table))
    (when (floatp (option-row-minimum row))
      (let ((exact (rationalize (option-row-minimum row))))
        (dolist (value (list exact (float exact 1f0) (float exact 1d0)))
          (is-true (check-option row value) "~S of ~S" value (option-row-name row)))
        (signals misuse (check-option row (* 99/100 exact)))))))

(test scopes-say-who-takes-an-option
  (flet ((takers (name)
           (loop for (taker) in *makers*
                 when (takes-option-p taker (find-option-row name)) collect taker)))
    (is (equal '(:connection :server :channel :inproc) (takers :max-receive-octets)))
    (is (equal '(:connection :server :channel) (takers :stream-window-octets)))
    (is (equal '(:connection :server) (takers :max-reset-burst)))
    (is (equal '(:connection :channel) (takers :keepalive-without-calls)))
    (is (equal '(:server) (takers :backlog)))
    (is (equal '(:server) (takers :reserve-threads)))
    (is (equal '(:channel) (takers :backoff-factor)))))

(defun refusal (function &rest arguments)
  "The text of the MISUSE that FUNCTION signals."
  (handler-case (progn (apply function arguments) nil)
    (misuse (condition) (princ-to-string condition))))

(test refusals-name-the-option-and-what-takes-it
  (is (search "The option :BACKLOG is for servers, not for channels."
              (refusal #'make-channel-options :backlog 1)))
  (is (search "The option :KEEPALIVE-SECONDS is for servers and channels, not for channels within"
              (refusal #'make-inproc-options :keepalive-seconds 1)))
  (is (search "There is no keyword or option :BAKLOG (is it :backlog?)"
              (refusal #'make-server-options :baklog 1)))
  (is (search "(is it :service-config?)" (refusal #'make-channel-options :service-confg 1)))
  (is (search "(is it :sampler?)" (refusal #'make-tracing-options :samplr 1)))
  (is (search ":TLS (:credentials makes it TLS" (refusal #'make-channel-options :tls t)))
  (is (search "\"HOST:PORT\"" (refusal #'make-server-options :port 80)))
  ;; the likeliest name by its letters would be :keepalive-timeout-seconds
  (is (search ":KEEPALIVE-TIME (:keepalive-seconds and"
              (refusal #'make-channel-options :keepalive-time 5)))
  (is (search "a keyword of each call" (refusal #'make-channel-options :timeout 5)))
  (is (search "Option :REUSE-PORT must be T or NIL, not 1."
              (refusal #'make-server-options :reuse-port 1)))
  (is (search "Option :BACKLOG must be an integer from 1 to 65535 (connections), not 1.5."
              (refusal #'make-server-options :backlog 1.5))))

(test options-print-what-is-not-the-default
  (is (search ":backlog 7" (princ-to-string (make-server-options :backlog 7))))
  (is (not (search ":backlog" (princ-to-string (make-server-options)))))
  (is (search ":max-held-octets 70000" (princ-to-string (make-options :max-held-octets 70000))))
  (is (search "backlog 4096 from 1 to 65535 connections"
              (princ-to-string (find-option-row :backlog))))
  (is (search "reuse-port NIL T or NIL" (princ-to-string (find-option-row :reuse-port)))))

(test copies-keep-their-kind
  (let* ((options (make-server-options :backlog 7))
         (copy (copy-options options)))
    (is (typep copy 'server-options))
    (is (= 7 (options-backlog copy)))
    (setf (options-backlog copy) 8)
    (is (= 7 (options-backlog options)))))
