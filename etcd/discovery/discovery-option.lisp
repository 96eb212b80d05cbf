;;;; Options of a server's command line that register it in etcd.

(in-package #:clgrpc.discovery)

(defstruct (registration-target (:copier nil))
  "Where a server is registered."
  (endpoints nil :type (or string list)) ; the endpoints of an etcd, for MAKE-ETCD
  (name "" :type string))                ; the name under which clients find the server there

(defun parse-registration-target (string)
  "The REGISTRATION-TARGET described by STRING, a target such as etcd://127.0.0.1:2379/greeter."
  (handler-case
      (multiple-value-bind (endpoints name) (parse-etcd-target string)
        (unless endpoints (command:refuse "~A does not give the address of etcd" string))
        (make-registration-target :endpoints endpoints :name name))
    (misuse (error) (command:refuse "~A" (string-right-trim "." (princ-to-string error))))))

(defun call-with-registration (server given function)
  "Register SERVER as GIVEN, the plist of a command line, requests, and call FUNCTION meanwhile. Its
argument is a list with a line that reports the registration; nil if GIVEN requests none. FUNCTION
stops SERVER."
  (destructuring-bind (&key register register-as weight zone &allow-other-keys) given
    (if (null register)
        (funcall function '())
        (etcd:with-etcd (etcd (registration-target-endpoints register))
          (let ((registration (register server (registration-target-name register)
                                        :etcd etcd :address register-as
                                        :weight weight :zone zone)))
            (funcall function
                     (list (format nil "~:[to be registered~;registered~] as ~A"
                                   (await-registration registration :timeout 5)
                                   (registration-key registration)))))))))

(command:define-shared-options :registration
  (register "TARGET" #'parse-registration-target nil
            "Register the server in etcd: etcd://HOST:PORT/NAME is also the target by which
      clients find it. Before the server stops, it is marked as draining there; afterwards its
      entry is removed.")
  (register-as "ADDRESS" (command:address-parser 1) nil
               "The address by which clients reach the server, if that is not the first address
      on which it listens.")
  (weight "N" (command:integer-parser 1 65535) nil
          "The weight with which the server is registered.")
  (zone "NAME" #'identity nil "The zone with which the server is registered."))

(command:add-group "clgrpc-etcd/discovery" (command:option-list :registration)
                   'call-with-registration)
