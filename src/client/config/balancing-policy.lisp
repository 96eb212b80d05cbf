;;;; The registry of balancing policies, and the part of a service config that chooses one of them,
;;;; loadBalancingConfig: a list of objects, each with the name of a policy and that policy's own
;;;; config, of which the first is taken whose policy is known (gRPC's service_config.proto).

(in-package #:clgrpc.config)

(defstruct (policy (:constructor make-policy (keyword names class parser)) (:copier nil))
  "A row of the registry."
  (keyword nil :type keyword :read-only t) ; its name as an option's value
  (names '() :type list :read-only t)   ; in JSON: strings, the first of them for people
  (class nil :type symbol :read-only t) ; of its balancers
  (parser nil :type (or symbol function) :read-only t)) ; see REGISTER-POLICY

(defmethod print-object ((policy policy) stream)
  (print-unreadable-object (policy stream :type t)
    (format stream "~S~{ ~A~}" (policy-keyword policy) (policy-names policy))))

(defglobal **policies** '())            ; a list of POLICY

(defun no-fields (object path)
  "The parser of policies that have nothing to configure."
  (declare (ignore object path))
  nil)

(defun whole-object (object path)
  "The parser of policies that read their config themselves."
  (declare (ignore path))
  object)

(defun register-policy (keyword names class &optional (parser 'no-fields))
  "Have KEYWORD, as the option :balance of a channel, and each of NAMES, strings, in the
loadBalancingConfig of a service config, mean the policy whose balancers are of CLASS, a symbol, a
subclass of BALANCER. PARSER is a function of the policy's own config, an object as an alist from
strings to values as PARSE-JSON has them, and of its path, text. It returns whatever UPDATE-BACKENDS
is to be given, or signals by CONFIG-ERROR what is wrong. A policy that has one of the names already
is replaced for channels and configs that are made later. From any thread."
  (check-type keyword keyword)
  (check-type class symbol)
  (let ((policy (make-policy keyword names class parser)))
    (sb-ext:atomic-update **policies**
                          (lambda (policies)
                            (append (remove keyword policies :key #'policy-keyword)
                                    (list policy)))))
  keyword)

(defun find-policy (name)
  "The policy that NAME, a keyword or a string as in JSON, means, or nil."
  (if (stringp name)
      (find-if (lambda (policy) (member name (policy-names policy) :test #'string=))
               **policies**)
      (find name **policies** :key #'policy-keyword)))

(defun known-policies ()
  "The keywords of all policies."
  (mapcar #'policy-keyword **policies**))

(defstruct (policy-config (:constructor make-policy-config (name row value)) (:copier nil))
  "A policy and its own config."
  (name "" :type string :read-only t)   ; as in JSON
  (row nil :type policy :read-only t)   ; of the registry
  (value nil :read-only t))             ; what the policy's parser has returned

(defmethod print-object ((config policy-config) stream)
  (print-unreadable-object (config stream :type t)
    (write-string (policy-config-name config) stream)))

(defun parse-policy (policy name object path)
  "The POLICY-CONFIG of POLICY, called NAME, whose own config is OBJECT at PATH."
  (make-policy-config name policy (funcall (policy-parser policy) object path)))

(defun default-policy-config (keyword)
  "The POLICY-CONFIG of the policy KEYWORD with nothing configured. Signal MISUSE if there is no
such policy."
  (let ((policy (or (find-policy keyword)
                    (misuse "There is no policy ~S to balance by; there are ~{~S~^, ~}." keyword
                            (known-policies)))))
    (parse-policy policy (first (policy-names policy)) '() "")))

(defun named-policy (key)
  "The policy that KEY means, a name as in JSON or a keyword of Lisp data, or nil."
  (or (find-policy key)
      (find-policy (key-name key))))

(defun chosen-policy (element path)
  "The POLICY-CONFIG that ELEMENT, at PATH, of a list of policies means, or nil and the name of its
policy if that is not known."
  (let ((members (object-members (check-object element path))))
    (unless (= 1 (length members))
      (config-error path "must be an object with one field, the name of a policy"))
    (destructuring-bind ((key . object)) members
      (let ((policy (named-policy key))
            (path (member-path path (key-name key))))
        (check-object (if (eq :null object) '() object) path)
        (if policy
            (parse-policy policy (key-name key) (if (eq :null object) '() object) path)
            (values nil (key-name key)))))))

(defun parse-balancing (list path)
  "The POLICY-CONFIG of the first element of LIST, as loadBalancingConfig has them, whose policy is
known; PATH is that of the list. Signal SERVICE-CONFIG-ERROR if there is none, or if its own config
is not valid."
  (loop for element in (check-list list path)
        for number from 0
        for (config unknown) = (multiple-value-list
                                (chosen-policy element (element-path path number)))
        do (when config (return config))
        collect unknown into strangers
        finally (config-error path "must have a policy that is known, one of ~{~A~^, ~}~@[, not ~
                                    only ~{~A~^, ~}~]"
                              (mapcan (lambda (policy) (copy-list (policy-names policy)))
                                      (copy-list **policies**))
                              strangers)))
