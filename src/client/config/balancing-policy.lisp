;;;; The registry of balancing policies, and the part of a service config that chooses one of them,
;;;; loadBalancingConfig: a list of objects, each with the name of a policy and that policy's own
;;;; config. The first object whose policy is known is used (gRPC's service_config.proto).

(in-package #:clgrpc.config)

(defstruct (policy (:constructor make-policy (keyword names class parser)) (:copier nil))
  "A row of the registry."
  (keyword nil :type keyword :read-only t) ; the policy's name as an option's value
  ;; strings, the policy's names in JSON; the first is used in texts for people
  (names '() :type list :read-only t)
  (class nil :type symbol :read-only t) ; the class of its balancers
  (parser nil :type (or symbol function) :read-only t)) ; see REGISTER-POLICY

(define-printer (policy policy)
  "~S~{ ~A~}" (policy-keyword policy) (policy-names policy))

(defglobal **policies** '())            ; a list of POLICY

(defun no-fields (object path)
  "The parser of policies without a config of their own."
  (declare (ignore object path))
  nil)

(defun whole-object (object path)
  "The parser of policies that read their config themselves."
  (declare (ignore path))
  object)

(defun register-policy (keyword names class &optional (parser 'no-fields))
  "Register the policy whose balancers are of CLASS, the symbol of a subclass of BALANCER. KEYWORD
is its name in the option :balance of a channel; NAMES, strings, are its names in the field
loadBalancingConfig. PARSER is a function of the policy's own config, an alist from strings to
values of PARSE-JSON, and of its path, a text. The function returns the config for UPDATE-BACKENDS,
or signals an error by CONFIG-ERROR. A policy that has KEYWORD already is replaced for channels and
configs that are made later. Return KEYWORD. From any thread."
  (check-type keyword keyword)
  (check-type class symbol)
  (let ((policy (make-policy keyword names class parser)))
    (sb-ext:atomic-update **policies**
                          (lambda (policies)
                            (append (remove keyword policies :key #'policy-keyword)
                                    (list policy)))))
  keyword)

(defun find-policy (name)
  "The policy with NAME, a keyword or a string as in JSON; nil if no policy has this name."
  (if (stringp name)
      (find-if (lambda (policy) (member name (policy-names policy) :test #'string=))
               **policies**)
      (find name **policies** :key #'policy-keyword)))

(defun known-policies ()
  "The keywords of all policies."
  (mapcar #'policy-keyword **policies**))

(defstruct (policy-config (:constructor make-policy-config (name row value)) (:copier nil))
  "A policy and its own config."
  (name "" :type string :read-only t)   ; the policy's name, as in JSON
  (row nil :type policy :read-only t)   ; the row of the registry
  (value nil :read-only t))             ; the value of the policy's parser

(define-printer (config policy-config)
  "~A" (policy-config-name config))

(defun parse-policy (policy name object path)
  "The POLICY-CONFIG of POLICY, called NAME, whose own config is OBJECT at PATH."
  (make-policy-config name policy (funcall (policy-parser policy) object path)))

(defun default-policy-config (keyword)
  "The POLICY-CONFIG of the policy KEYWORD with an empty config. Signal MISUSE for an unknown
policy."
  (let ((policy (or (find-policy keyword)
                    (misuse "~S is not a balancing policy; the policies are ~{~S~^, ~}." keyword
                            (known-policies)))))
    (parse-policy policy (first (policy-names policy)) '() "")))

(defun named-policy (key)
  "The policy with KEY, a name as in JSON or a keyword of Lisp data; nil if no policy has this
name."
  (or (find-policy key)
      (find-policy (key-name key))))

(defun chosen-policy (element path)
  "The POLICY-CONFIG in ELEMENT, at PATH, of a list of policies; or nil and the name of its policy
if that is not known."
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
  "The POLICY-CONFIG of the first element of LIST, as in loadBalancingConfig, whose policy is known;
PATH is the path of LIST. Signal SERVICE-CONFIG-ERROR if no policy is known, or if its own config is
not valid."
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
