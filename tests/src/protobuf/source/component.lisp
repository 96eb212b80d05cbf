;;;; The ASDF component in separate images: built, built again, built after changes.

(in-package #:clgrpc.tests.protobuf)
(in-suite :clgrpc.protobuf)

(defparameter *shop*
  `(("shop/shop.asd" . "(defsystem \"shop\"
  :defsystem-depends-on (\"clgrpc/protobuf\")
  :depends-on (\"clgrpc/protobuf\")
  :components ((:file \"main\" :depends-on (\"protos\"))
               (:module \"protos\"
                :components ((:proto-file \"order\" :import-paths (\"common/\"))
                             (:proto-file \"item\")))))
")
    ("shop/main.lisp" . "(defpackage #:shop-main (:use #:cl))
(in-package #:shop-main)
(defun speak ()
  (print (shop:make-order :items (list (shop:make-item :price (money:make-amount :cents 5))))))
")
    ("shop/protos/order.proto" . "syntax = 'proto3'; package shop;
import 'item.proto'; message Order { repeated Item items = 1; }")
    ("shop/protos/item.proto" . "syntax = 'proto3'; package shop;
import 'common/money.proto'; message Item { money.Amount price = 1; }")
    ("shop/common/money.proto" . "syntax = 'proto3'; package money;
message Amount { int32 cents = 1; }")
    ("store/store.asd" . "(defsystem \"store\"
  :defsystem-depends-on (\"clgrpc/protobuf\")
  :depends-on (\"clgrpc/protobuf\" \"shop\")
  :components ((:proto-file \"store\")
               (:module \"more\"
                :components ((:proto-file \"depot/part\") (:proto-file \"depot/label\")))))
")
    ("store/more/depot/part.proto" . "syntax = 'proto3'; package depot.v1;
import 'depot/label.proto'; message Part { Label label = 1; }")
    ("store/more/depot/label.proto" . "syntax = 'proto3'; package depot.v1;
message Label { string text = 1; }")
    ("store/store.proto" . "syntax = 'proto3'; package store;
import 'item.proto'; message Shelf { shop.Item item = 1; }"))
  "A system with .proto files that import each other, and one that imports from it.")

(defun load-asd (path directory)
  (format nil "(asdf:load-asd ~S)" (namestring (merge-pathnames path directory))))

(defun build-output (directory &rest forms)
  "The output of a fresh image that loads the system store from DIRECTORY and evaluates FORMS, a
list of texts. Its fasls also go to DIRECTORY."
  (apply #'other-image-output
         (loop for form in (list* (format nil "(asdf:initialize-output-translations
 '(:output-translations (~S (~S \"fasls/\")) :inherit-configuration))"
                                          (namestring directory) (namestring directory))
                                  (load-asd "shop/shop.asd" directory)
                                  (load-asd "store/store.asd" directory)
                                  "(setf *compile-verbose* t)"
                                  "(handler-case (asdf:load-system \"store\")
  (error (e) (format t \"~&failed: ~A~%\" e) (sb-ext:exit)))"
                                  forms)
               append (list "--eval" form))))

(defun touch (files seconds)
  "Set the write dates of FILES to SECONDS from now."
  (uiop:run-program (list* "touch" "-d" (format nil "~D seconds" seconds)
                           (mapcar #'uiop:native-namestring files))))

(defun files-below (directory)
  (remove-if #'uiop:directory-pathname-p (directory (merge-pathnames "**/*.*" directory))))

(defun compiled-p (name output)
  "True if OUTPUT shows that the component of NAME.proto was compiled."
  (search (format nil "~A.proto-tmp" name) output))

(test proto-files-are-components
  (with-tree (directory *shop*)
    (let ((time 0))
      (labels ((file (path) (merge-pathnames path directory))
               (build (&rest changed)
                 ;; later than what there is, by the clock of whole seconds that ASDF reads
                 (touch (files-below directory) (incf time 10))
                 (when changed (touch (mapcar #'file changed) (incf time 10)))
                 (build-output directory "(shop-main::speak)"
                               "(print (store:make-shelf :item (shop:make-item)))"
                               ;; by the names that the system gives them
                               "(print (depot.v1:make-part :label (depot.v1:make-label)))")))
        (let ((output (build)))
          (is (search "#<SHOP:ORDER :items (#<SHOP:ITEM :price #<MONEY:AMOUNT :cents 5>>)>" output)
              "~A" output)
          (is (search "#<STORE:SHELF :item #<SHOP:ITEM>>" output))
          (is (search "#<DEPOT.V1:PART :label #<DEPOT.V1:LABEL>>" output) "~A" output)
          (is (not (search "WARNING" output)) "~A" output)
          (dolist (name '("order" "item" "store")) (is-true (compiled-p name output) "~A" output)))
        (let ((output (build)))
          (is (search "#<STORE:SHELF" output))
          (dolist (name '("order" "item" "store")) (is (not (compiled-p name output)))))
        (let ((output (build "shop/common/money.proto")))
          (dolist (name '("order" "item" "store")) (is-true (compiled-p name output) "~A" output)))
        (let ((output (build "store/store.proto")))
          (is-true (compiled-p "store" output))
          (is (not (compiled-p "item" output))))
        (delete-file (file "shop/common/money.proto"))
        (let ((output (build "shop/protos/item.proto")))
          (is (search "failed: " output) "~A" output)
          (is (search "item.proto:2:" output) "~A" output)
          (is (search "\"common/money.proto\" is not found in" output) "~A" output)
          (is (search (namestring (file "shop/protos/")) output) "~A" output))))))
