;;;; The option --console of commands that serve.

(in-package #:clgrpc.console)

(defun open-console (addresses metrics credentials)
  "Return a console of METRICS that will be shown on ADDRESSES. Signal an error if other machines
can reach ADDRESSES without TLS, that is, without CREDENTIALS, because the console's address
contains a secret."
  (let ((remote (notevery #'loopback-address-p addresses)))
    (when (and remote (null credentials))
      (command:refuse "--console ~{~A~^,~}: the secret of the console would cross the network ~
                       unencrypted; give --tls-cert, or an address of this machine that no ~
                       other reaches, such as 127.0.0.1:0"
                      addresses))
    (make-console :metrics metrics :remote remote)))

(defun call-with-console (addresses metrics credentials function)
  "Call FUNCTION with a console of METRICS and its address, a string, and show the console on
ADDRESSES while FUNCTION runs, over TLS if there are CREDENTIALS. If ADDRESSES is nil, call FUNCTION
with nil and nil. From any thread."
  (if (null addresses)
      (funcall function nil nil)
      (let ((console (open-console addresses metrics credentials)))
        (program:call-with-web addresses credentials (list (console-handler console))
                               (lambda (page) (console-url console page))
                               (lambda (url) (funcall function console url))))))

(defun find-console (observers)
  (find-if (lambda (observer) (typep observer 'console)) observers))

(defun make-console-as-asked (given)
  "The observers that the option --console in GIVEN, the plist of a command line, adds: a console,
and its metrics if the observers of GIVEN include no metrics. Add no console if the observers of
GIVEN include one."
  (destructuring-bind (&key console observer credentials &allow-other-keys) given
    (when (and console (not (find-console observer)))
      (let* ((own (find-if (lambda (observer) (typep observer 'metrics:metrics)) observer))
             (metrics (or own (metrics:make-metrics)))
             (made (open-console (if (listp console) console (list console)) metrics
                                 credentials)))
        (if own (list made) (list metrics made))))))

(defun call-with-console-page (server given function)
  "Call FUNCTION, which stops SERVER. If GIVEN, the plist of a command line, has addresses for the
console, which is one of SERVER's observers, serve the console there while FUNCTION runs, and call
FUNCTION with a list of one line that contains the console's address. Otherwise call FUNCTION with
nil."
  (declare (ignore server))
  (destructuring-bind (&key addresses observer credentials &allow-other-keys)
      (list* :addresses (getf given :console) given)
    (let ((console (find-console observer)))
      (program:call-with-web
       addresses credentials (and addresses (list (console-handler console)))
       (lambda (page) (console-url console page))
       (lambda (url)
         (funcall function (and url (list (format nil "console at ~A" url)))))))))

(command:define-shared-options :console
  (console "ADDRESSES" (command:addresses-parser 0) nil
           "Serve a page with the process's calls and counts at ADDRESSES. Prints the address to
      open, which contains a secret. If other machines can reach ADDRESSES, they may look as well,
      over HTTPS: that needs --tls-cert."))

(command:add-group "clgrpc-tools/console" (command:option-list :console) 'call-with-console-page
                   :observers 'make-console-as-asked)
