;;;; Transactions: comparisons, what is done if all of them are so, and what if not, at one revision
;;;; of the store. They are written as lists:
;;;;
;;;;     (transact etcd :when '((:absent "lock")) :then '((:put "lock" "mine"))
;;;;                    :else '((:get "lock")))

(in-package #:clgrpc.etcd)

(defun comparison-result (operator)
  (cond ((not (symbolp operator)) nil)
        ((string= "=" operator) :equal)
        ((string= "/=" operator) :not-equal)
        ((string= "<" operator) :less)
        ((string= ">" operator) :greater)))

(defun compare-entry (key target result operand)
  "The comparison of TARGET, a word of COMPARISON, of KEY's entry with OPERAND."
  (let ((key (key-octets key)))
    (ecase target
      (:value (pb:make-compare :key key :result result :target :value
                               :value (text-octets operand)))
      (:version (pb:make-compare :key key :result result :target :version :version operand))
      (:created (pb:make-compare :key key :result result :target :create
                                 :create-revision operand))
      (:changed (pb:make-compare :key key :result result :target :mod :mod-revision operand))
      (:lease (pb:make-compare :key key :result result :target :lease
                               :lease (lease-number operand))))))

(defun comparison (form)
  "The message that FORM, a comparison of a transaction, stands for. Signal MISUSE if it is none."
  (flet ((wrong () (misuse "~S is no comparison of a transaction." form)))
    (unless (and (consp form) (typep (second form) 'text)) (wrong))
    (destructuring-bind (target key &optional operator operand &rest more) form
      (let ((result (comparison-result operator)))
        (cond ((and (member target '(:absent :present)) (null (cddr form)))
               (compare-entry key :version (if (eq :absent target) :equal :greater) 0))
              (more (wrong))
              ((and result (eq :value target) (typep operand 'text))
               (compare-entry key target result operand))
              ((and result (eq :lease target) (typep operand '(or lease integer)))
               (compare-entry key target result operand))
              ((and result (member target '(:version :created :changed)) (integerp operand))
               (compare-entry key target result operand))
              (t (wrong)))))))

(defun ranged (function options)
  "Call FUNCTION with first key and end of the range that OPTIONS, a plist, say."
  (destructuring-bind (&key prefix from to) options
    (multiple-value-call function (range-of prefix from to))))

(defun operation (form)
  "The message that FORM, an operation of a transaction, stands for. Signal MISUSE if it is none."
  (unless (consp form) (misuse "~S is no operation of a transaction." form))
  (destructuring-bind (verb &rest arguments) form
    (case verb
      (:get (pb:make-request-op
             :request-range (range-request (key-octets (first arguments)) nil)))
      (:get-all (pb:make-request-op :request-range (ranged #'range-request arguments)))
      (:put (pb:make-request-op :request-put (apply #'put-request arguments)))
      (:remove (pb:make-request-op
                :request-delete-range
                (pb:make-delete-range-request :key (key-octets (first arguments)))))
      (:remove-all (pb:make-request-op
                    :request-delete-range
                    (ranged (lambda (start end)
                              (pb:make-delete-range-request :key start :range-end end))
                            arguments)))
      (t (misuse "~S is no operation of a transaction." form)))))

(defun operation-value (form response)
  "What RESPONSE, a response to the operation FORM, is to the user."
  (ecase (first form)
    (:get (first (entries-of (pb:range-response-kvs (pb:response-op-response-range response)))))
    (:get-all (entries-of (pb:range-response-kvs (pb:response-op-response-range response))))
    (:put (entry-of (pb:put-response-prev-kv (pb:response-op-response-put response))))
    ((:remove :remove-all)
     (pb:delete-range-response-deleted (pb:response-op-response-delete-range response)))))

(defun transact (etcd &key when then else timeout)
  "Do THEN if all of WHEN is so, else ELSE, as one: nobody sees a part of it. Return whether it was
so; a list of what the operations that were done have returned; and the revision of the store.
WHEN is a list of comparisons of the entries of keys: (:absent KEY), (:present KEY), and with =, /=,
< or > as OPERATOR (:value KEY OPERATOR TEXT), (:version KEY OPERATOR NUMBER), (:created KEY
OPERATOR REVISION), (:changed KEY OPERATOR REVISION), (:lease KEY OPERATOR LEASE). What is not
there has version and revisions 0.
THEN and ELSE are lists of operations: (:get KEY), which returns an entry or nil; (:get-all :prefix
PREFIX) or with :from and :to, a list of entries; (:put KEY VALUE) with :lease, :keep-lease,
:previous as for PUT, nil or the previous entry; (:remove KEY) and (:remove-all :prefix PREFIX),
how many entries that removed. No key may be put twice. Signal MISUSE for what is none of these, or
an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let* ((response (ask etcd #'kv:txn
                        (pb:make-txn-request :compare (mapcar #'comparison when)
                                             :success (mapcar #'operation then)
                                             :failure (mapcar #'operation else))
                        timeout))
         (succeeded (pb:txn-response-succeeded response)))
    (values succeeded
            (map 'list #'operation-value (if succeeded then else)
                 (pb:txn-response-responses response))
            (header-revision (pb:txn-response-header response)))))
