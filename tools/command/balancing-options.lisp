;;;; The options by which commands choose among a channel's servers and set how calls are made.

(in-package #:clgrpc.tools)

(defun read-config-text (string)
  "The JSON in STRING or, if STRING names a file, in that file."
  (if (uiop:string-prefix-p "{" (string-left-trim '(#\Space #\Tab #\Newline #\Return) string))
      string
      (handler-case (octets-string (file-octets string))
        (error (error) (refuse "give JSON or a file; ~A cannot be read: ~A" string
                               (report:error-reason error))))))

(defun parse-config-argument (string)
  "The text of a service config: STRING or, if STRING names a file, the contents of that file."
  (let ((text (read-config-text string)))
    (handler-case (config:parse-service-config text)
      (config:service-config-error (error) (refuse "~A" error)))
    text))

(defun policy-text (keyword)
  "The name that users may write for the policy KEYWORD."
  (substitute #\_ #\- (string-downcase keyword)))

(defun parse-policy-name (string)
  "The keyword of the balancing policy that STRING names, as in a service config, or without the
ending _experimental."
  (or (find (substitute #\_ #\- string) (config:known-policies)
            :key #'policy-text :test #'string-equal)
      (let ((policy (config:find-policy string)))
        (and policy (config:policy-keyword policy)))
      (refuse "no policy is called ~S; the policies are ~{~A~^, ~}" string
              (mapcar #'policy-text (config:known-policies)))))

(define-shared-options balancing-options
  (service-config "JSON|FILE" #'parse-config-argument nil
                  "A service config, or a file that contains one: time-outs, retries, balancing.")
  ((balance nil "--lb-strategy") "NAME" #'parse-policy-name nil
           "The policy that distributes calls to the servers of ADDRESS, such as round_robin. By
      default the service config decides, or else the first server that answers gets all calls."))

(defun balancing-arguments (service-config balance)
  "The keyword arguments of MAKE-CHANNEL that the options BALANCING-OPTIONS mean."
  (append (when service-config (list :service-config service-config))
          (when balance (list :balance balance))))
